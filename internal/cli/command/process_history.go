package command

import (
	"context"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/terminal"
)

// history is the recent output of a process.
type history struct {
	output []byte
	cut    bool // there was more before
}

// read fetches it and returns the position behind it.
func (h *history) read(ctx context.Context, conn *Connection, ref ProcessRef) (int64, bool) {
	since := int64(-terminal.MaxHistory)
	at, any := int64(0), false
	err := conn.Logs(ctx, ref.Sandbox, api.LogOptions{ExecID: ref.Process, Since: &since}, func(e api.LogEntry) error {
		if e.Gap > 0 || !any && e.Position > 0 {
			h.cut = true
		}
		h.output = append(h.output, e.Data...)
		if over := len(h.output) - terminal.MaxHistory; over > 0 {
			h.output, h.cut = append(h.output[:0], h.output[over:]...), true
		}
		at, any = e.Position+int64(len(e.Data)), true
		return nil
	})
	if err != nil {
		h.output = nil // then there is no picture, and the attach says what is wrong
		return 0, false
	}
	return at, any
}
