//go:build linux

package fake

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"syscall"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/engine"
	"github.com/cloche-dev/cloche/internal/hostfile"
)

// memoryFile is the only file of a saved memory. It says which process the memory is of, which stays stopped for as long.
const memoryFile = "memory"

// memory is a saved memory: the process that it is of, which is nil when it was given away, and the ID of the sandbox.
type memory struct {
	*process
	id string
}

// forks reports whether a plan is for another sandbox than the one that its memory was saved of. Such a sandbox gets an agent of
// its own, which has none of the processes of the other.
func (m *Machine) forks(p engine.Plan) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	saved, ok := m.memories[string(p.Memory.Note)]
	return ok && saved.id != p.ID
}

// Suspend implements engine.Suspender.
func (i *instance) Suspend(ctx context.Context, dir string) (_ engine.Completion, err error) {
	if err := i.usable("suspend"); err != nil {
		return nil, err
	}
	if i.isPaused() {
		return nil, api.Errorf(api.CodeState, "suspend sandbox %s: it is paused", i.ID)
	}
	if err := i.Pause(ctx); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			_ = i.Resume(context.WithoutCancel(ctx)) // unless it died
		}
	}()
	if err := i.m.current().at(ctx, i, StepSuspend); err != nil {
		return nil, err
	}
	note := []byte(api.NewID("mem-"))
	if err := hostfile.ReplaceIn(dir, memoryFile, note); err != nil {
		return nil, fmt.Errorf("save memory: %w", err)
	}
	i.m.mu.Lock()
	i.m.memories[string(note)] = memory{i.process, i.ID}
	i.m.mu.Unlock()
	return func(ctx context.Context) (engine.Memory, error) {
		return engine.Memory{Dir: dir, Bytes: int64(len(note)), Note: note}, i.m.current().at(ctx, i, StepComplete)
	}, nil
}

// watch closes done when the process has ended, or when the instance has left it.
func (i *instance) watch() {
	defer close(i.done)
	select {
	case <-i.ended:
	case <-i.left:
	}
}

// leave separates an instance from its process, if the memory of that was saved.
func (i *instance) leave() {
	i.m.mu.Lock()
	defer i.m.mu.Unlock()
	i.mu.Lock()
	defer i.mu.Unlock()
	for _, p := range i.m.memories {
		if p.process != i.process || !i.paused {
			continue
		}
		select {
		case <-i.left:
		default:
			close(i.left)
		}
	}
}

// wake gives an instance the process of a saved memory. The process can be given once.
func (m *Machine) wake(i *instance, p engine.Plan) error {
	note, err := os.ReadFile(filepath.Join(p.Memory.Dir, memoryFile))
	m.mu.Lock()
	asleep := m.memories[string(note)].process
	if err == nil && asleep != nil && string(note) == string(p.Memory.Note) {
		i.process = asleep
		m.memories[string(note)] = memory{nil, m.memories[string(note)].id}
		m.created = append(m.created, p)
	} else {
		asleep = nil
	}
	m.mu.Unlock()
	go i.watch()
	if asleep == nil {
		close(i.ended)
		return api.Errorf(api.CodeInternal, "create sandbox: its memory has changed").WithCause(errors.Join(engine.ErrMemoryRefused, err))
	}
	signal(i.tree(), syscall.SIGCONT)
	return nil
}
