package docker

import (
	"encoding/json"
	"fmt"
)

// recordVersion is of what this build writes.
const recordVersion = 1

// record is the State of an instance.
type record struct {
	Version   int    `json:"version"`
	ID        string `json:"id"`
	Owner     string `json:"owner"`
	Host      string `json:"host"`
	Container string `json:"container"`
	Port      int    `json:"port"`
	// Inner is the path of package inner's program inside.
	Inner string `json:"inner"`
	// Volumes: it has some.
	Volumes bool `json:"volumes,omitempty"`
	// Parent is the process that the instance dies with; may be nil.
	Parent *parent `json:"parent,omitempty"`
}

// parent is a process: its number, and what tells it from a later one.
type parent struct {
	PID   int    `json:"pid"`
	Began string `json:"began"`
}

func parseRecord(state []byte) (record, error) {
	var r record
	if err := json.Unmarshal(state, &r); err != nil {
		return r, fmt.Errorf("read state: %w", err)
	}
	if r.Version < 1 || r.Container == "" || r.Host == "" || !safe(r.ID) || !safe(r.Owner) {
		return r, fmt.Errorf("read state: it does not belong to this engine")
	}
	return r, nil
}
