//go:build linux

package process

import (
	"time"

	"golang.org/x/sys/unix"

	"github.com/cloche-dev/cloche/api"
)

// maxKilled bounds the ids in a killedIDs; the oldest give way.
const maxKilled = 1024

// killedIDs are ids for which a KILL came while no process had them: a caller that gives
// up a start may be heard before the start is. The zero value is empty. Manager.mu
// guards it.
type killedIDs struct {
	marks []killedID // oldest first
}

type killedID struct {
	id string
	at time.Time
	// managed: managed processes are refused too.
	managed bool
}

// add remembers a KILL.
func (k *killedIDs) add(id string, managed bool) {
	k.expire()
	if len(id) > maxIDLen {
		return // no process can have it
	}
	if len(k.marks) >= maxKilled {
		k.marks = append(k.marks[:0], k.marks[1:]...)
	}
	k.marks = append(k.marks, killedID{id, time.Now(), managed})
}

// has reports whether a process of that id, managed or not, must not be started.
func (k *killedIDs) has(id string, managed bool) bool {
	k.expire()
	for _, m := range k.marks {
		if m.id == id && (m.managed || !managed) {
			return true
		}
	}
	return false
}

func (k *killedIDs) expire() {
	old := 0
	for old < len(k.marks) && time.Since(k.marks[old].at) >= api.KilledMemory {
		old++
	}
	if old > 0 {
		k.marks = append(k.marks[:0], k.marks[old:]...)
	}
}

func errKilledBefore(id string) *api.Error {
	return api.Errorf(api.CodeState, "process %q was killed before it was started", id).
		WithHint("start it under another id")
}

// target finds the process that a signal is for. It waits for one that is being launched.
// A KILL for an id that no process has is remembered before the error is returned.
func (ps *Manager) target(id string, sig unix.Signal, forestall bool) (*process, error) {
	for {
		p, err := ps.find(id)
		if err == nil || id == "" {
			return p, err
		}
		ps.mu.Lock()
		launching := ps.byID[id]
		if launching == nil && sig == unix.SIGKILL {
			ps.killed.add(id, forestall)
		}
		ps.mu.Unlock()
		if launching == nil {
			return nil, err
		}
		<-launching.launched
	}
}
