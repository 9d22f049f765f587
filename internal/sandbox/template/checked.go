package template

import (
	"sync"
	"sync/atomic"
)

// maxChecked is the number of snapshots that Checked knows.
const maxChecked = 1000

// Checked knows of which stored memories this process has written or checked the files, so that they are not read for each
// sandbox. It is safe for concurrent use.
type Checked struct {
	mu  sync.Mutex
	ids map[string]*atomic.Bool
}

// Of returns whether the memory of the snapshot with an ID is checked. The caller sets it when it is.
func (c *Checked) Of(id string) *atomic.Bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.ids == nil || len(c.ids) >= maxChecked && c.ids[id] == nil {
		c.ids = map[string]*atomic.Bool{}
	}
	if c.ids[id] == nil {
		c.ids[id] = new(atomic.Bool)
	}
	return c.ids[id]
}
