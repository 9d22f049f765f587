//go:build linux

package role

import (
	"encoding/binary"
	"encoding/json"
	"strings"
	"sync"
	"time"

	"github.com/cloche-dev/cloche/internal/engine/gvisor/refusal"
	"golang.org/x/sys/unix"
	"gvisor.dev/gvisor/pkg/sentry/kernel"
)

const (
	// burst refusals are told at once, and then one each pace.
	burst = 32
	pace  = 500 * time.Millisecond
)

// teller tells the engine what was refused, without ever waiting for it: a
// refusal that does not fit, or comes too often, is counted only.
type teller struct {
	pipe int

	mu    sync.Mutex
	count []byte // shared with the engine's file
	seen  uint64
	// full is when the next burst is whole again.
	full time.Time
}

// note counts a refusal and reports it, if it fits.
func (l *teller) note(t *kernel.Task, rule int, op, name string, r refusal.Rule) {
	program, path := t.Name(), strings.TrimPrefix(strings.TrimPrefix(name, r.Target), "/")
	n := refusal.Note{
		Rule: rule, Op: op, Path: []byte(path[:min(len(path), refusal.MaxPath)]), Program: []byte(program[:min(len(program), refusal.MaxProgram)]),
		UID: uint32(t.Credentials().RealKUID.In(t.Kernel().RootUserNamespace())),
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.seen++
	binary.LittleEndian.PutUint64(l.count, l.seen)
	now := time.Now()
	if l.full.Before(now) {
		l.full = now
	}
	if l.full.Sub(now) > (burst-1)*pace {
		return
	}
	n.Seq = l.seen
	line, err := json.Marshal(n)
	if err != nil || len(line) >= refusal.MaxLine {
		return
	}
	l.full = l.full.Add(pace)
	// It does not block, and takes the line whole or not at all.
	_, _ = unix.Write(l.pipe, append(line, '\n'))
}
