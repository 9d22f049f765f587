package process

import (
	"context"
	"time"

	"github.com/cloche-dev/cloche/api"
)

// Init gives the table of a sandbox what it works with. Dir is the directory of the sandbox. Init is
// called before the table is used.
func (t *Table) Init(all *Runner, names Names, dir string, sandbox Sandbox) {
	t.all, t.names, t.dir, t.sandbox = all, names, dir, sandbox
}

// Adopt takes over the processes of a recovered sandbox: it continues to collect the output of those
// that live, and ends the records of those that cannot.
func (t *Table) Adopt() { t.all.adoptProcesses(t) }

// Settle waits until the records of the processes of an ended sandbox are final.
func (t *Table) Settle() { t.all.settleProcesses(t) }

// SaveOutput saves what the agent of a sandbox that is about to end holds of output.
func (t *Table) SaveOutput(ctx context.Context) error { return t.all.saveOutput(ctx, t) }

// Reap removes, in the background, the records whose retention is over, and returns when to check
// again. A zero time is never.
func (t *Table) Reap() (next time.Time) { return t.all.reapProcesses(t) }

// Signal sends a signal to a process.
func (t *Table) Signal(ctx context.Context, id string, r api.SignalRequest) error {
	return t.all.signal(ctx, t, id, r)
}

// Running reports whether a process of the sandbox has not ended.
func (t *Table) Running() bool {
	for _, p := range t.every() {
		if ended, gone := p.ended(); !ended && !gone {
			return true
		}
	}
	return false
}
