package e2b

import (
	"encoding/json"
	"errors"
	"fmt"

	"github.com/cloche-dev/cloche/internal/engine"
)

// recordVersion is the one of the records that this build writes.
const recordVersion = 1

// record is all that is needed to find a sandbox again. It has no secret: the service returns the token
// of its data plane for the key.
type record struct {
	Version int    `json:"version"`
	ID      string `json:"id"`
	Owner   string `json:"owner"`
	// API is the service that has the sandbox. The key is for no other one.
	API     string `json:"api"`
	Sandbox string `json:"sandbox"`
	// Program plays package inner's roles inside. Socket is where the agent listens.
	Program string `json:"program"`
	Socket  string `json:"socket"`
	// LifetimeS is how long the sandbox exists without its daemon, in seconds.
	LifetimeS int64 `json:"lifetime_s"`
}

func parseRecord(state []byte) (record, error) {
	var r record
	if err := json.Unmarshal(state, &r); err != nil {
		return r, fmt.Errorf("read state: %w", err)
	}
	if r.Version != recordVersion || !engine.SafeName(r.ID) || !engine.SafeName(r.Owner) || !sandboxID.MatchString(r.Sandbox) || r.LifetimeS <= 0 {
		return r, errors.New("read state: it is not one of this engine's")
	}
	return r, nil
}
