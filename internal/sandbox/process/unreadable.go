package process

import (
	"fmt"
	"os"
	"path/filepath"

	"github.com/cloche-dev/cloche/api"
)

// unreadableLogBytes is more than the output of a process may have, whose bound is not
// known any more: nothing of it is dropped.
const unreadableLogBytes = 1 << 40

// unreadableProcess is what is kept of a process whose record cannot be read: its output,
// until it is removed by name or with its sandbox. It is told once.
func (m *Runner) unreadableProcess(s *Table, dir string, err error) *process {
	id := filepath.Base(dir)
	file := filepath.Join("owners", m.o.Owner, "sandboxes", s.names.ID, Records, id, processRecordFile)
	m.o.Logger.Error("the record of a process cannot be read: its output is kept", "sandbox", s.names.ID, "process", id, "file", filepath.Join(dir, processRecordFile), "error", err)
	rec := api.Process{ExecID: id, Managed: true, StartedAt: now()}
	if fi, err := os.Stat(dir); err == nil {
		rec.StartedAt = fi.ModTime().UTC()
	}
	unknown(fmt.Sprintf("its record %s cannot be read; its output is kept until it is removed", file))(&rec)
	m.o.Events(api.Event{Time: now(), Kind: api.EventRecord, Tenant: s.names.Tenant, Sandbox: s.names.ID, Name: s.names.Name, Process: &rec, Reason: rec.Reason})
	return newProcess(dir, processRecord{Process: rec, Confirmed: true, Collected: true, LogBytes: unreadableLogBytes})
}
