//go:build linux

package gvisor

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"golang.org/x/sys/unix"
	"gvisor.dev/gvisor/pkg/urpc"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/engine"
	"github.com/cloche-dev/cloche/internal/engine/checkpoint"
	"github.com/cloche-dev/cloche/internal/engine/lifecycle"
	"github.com/cloche-dev/cloche/internal/hostfile"
)

// memoryFiles are the files of a checkpoint, in the order in which gVisor takes them: the kernel, which pages there are,
// and the pages. What is written to the root is among the pages.
var memoryFiles = [...]string{"kernel", "pages.meta", "pages"}

// memoryNote is what Memory.Note says.
type memoryNote struct {
	// GVisor is the version that saved the files: another cannot read them.
	GVisor string `json:"gvisor"`
	// Executable is the hash of the kept executable that saved them; empty if none is kept.
	Executable string `json:"executable,omitempty"`
	// Sums are the SHA-256 checksums of memoryFiles, in hex.
	Sums [len(memoryFiles)]string `json:"sums"`
	// Sizes are what memoryFiles contain, in bytes. They may be stored compressed or encrypted.
	Sizes [len(memoryFiles)]int64 `json:"sizes"`
	// Files are the files of mounts that were open.
	Files []hostFile `json:"files,omitempty"`
}

// Suspend implements engine.Suspender. gVisor's own end after a save would also end a sandbox that could not be saved,
// so it is asked to go on, and stays paused by a pause of our own.
func (i *instance) Suspend(ctx context.Context, dir string) (complete engine.Completion, err error) {
	if i.foreign() {
		return nil, i.foreignError("suspend")
	}
	if i.brake.held() {
		return nil, api.Errorf(api.CodeState, "suspend sandbox %s: it is paused", i.rec.ID).WithHint("resume it")
	}
	i.dropBorn()
	defer i.streams.reopen()
	if err := i.streams.close(ctx); err != nil {
		return nil, err
	}
	err = i.drive(ctx, "suspend", func(ctx context.Context) error {
		complete, err = i.holdAndSave(ctx, dir)
		for n := 1; n < saveTries && errors.Is(err, api.ErrUnsupported) && ctx.Err() == nil; n++ {
			i.e.log.Info("save the memory again", "sandbox", i.rec.ID, "error", err)
			select {
			case <-time.After(time.Duration(n) * saveWait):
			case <-ctx.Done():
				return err
			}
			complete, err = i.holdAndSave(ctx, dir)
		}
		return err
	})
	return complete, err
}

// A save is tried saveTries times, after 1, 2 and more times saveWait: what carried a connection that was closed takes a moment to
// end, and until then gVisor cannot encode it ("waiter.ChannelNotifier is not known").
const (
	saveTries = 8
	saveWait  = 20 * time.Millisecond
)

// holdAndSave pauses the sandbox and saves its memory. After an error it runs on.
func (i *instance) holdAndSave(ctx context.Context, dir string) (engine.Completion, error) {
	if err := i.brake.hold(ctx); err != nil {
		return nil, err
	}
	m, err := i.saveMemory(ctx, dir)
	if err == nil {
		return m.complete, nil
	}
	// Whatever becomes of the caller, it goes on.
	if rerr := i.brake.release(context.WithoutCancel(ctx)); rerr != nil && !i.sentry.Dead() {
		return nil, errors.Join(err, rerr)
	}
	return nil, err
}

// saved are the files that a sentry has written, which may not be on the disk yet.
type saved struct {
	id, dir string
	at      *os.Root // dir
	sums    *checkpoint.Sums
	files   []*checkpoint.File
	note    memoryNote
}

// saveMemory has the sentry write its files into dir.
func (i *instance) saveMemory(ctx context.Context, dir string) (_ *saved, err error) {
	at, err := os.OpenRoot(dir)
	if err != nil {
		return nil, fmt.Errorf("open directory of the memory: %w", err)
	}
	m := &saved{id: i.rec.ID, dir: dir, at: at, sums: &i.e.sums, note: memoryNote{GVisor: i.e.version, Executable: i.rec.Executable}}
	defer func() {
		if err != nil {
			m.close()
		}
	}()
	payload := urpc.FilePayload{}
	for _, name := range memoryFiles {
		f, err := checkpoint.Create(at, name, i.e.opts.CheckpointKey)
		if err != nil {
			return nil, err
		}
		m.files, payload.Files = append(m.files, f), append(payload.Files, f.File)
	}
	err = i.ctl.callLong(ctx, callCheckpoint, &checkpointing{
		FilePayload: payload, Metadata: uncompressed(), ExcludeZeroPages: true, HavePagesFile: true, Resume: true,
	}, nil)
	if err != nil {
		return nil, unsaved(i.rec.ID, err)
	}
	if m.note.Files, err = hostFiles(i.sentry.ID.PID); err != nil {
		return nil, err
	}
	return m, nil
}

func (m *saved) close() {
	for _, f := range m.files {
		f.Close()
	}
	m.at.Close()
}

// complete implements engine.Completion.
func (m *saved) complete(ctx context.Context) (out engine.Memory, err error) {
	defer m.close()
	// The disk writes while the checksums are made.
	stored := make(chan error, 1)
	go func() {
		var err error
		for _, f := range m.files {
			err = errors.Join(err, f.Store(ctx))
		}
		stored <- errors.Join(err, hostfile.SyncDirAt(m.dir))
	}()
	for n, f := range m.files {
		if m.note.Sizes[n], m.note.Sums[n], err = m.sums.Of(ctx, f.File); err != nil {
			break
		}
	}
	if err := errors.Join(err, <-stored); err != nil {
		return out, fmt.Errorf("write the memory: %w", unstored(m.id, err))
	}
	out.Dir = m.dir
	for _, f := range m.files {
		out.Bytes += f.Stored()
	}
	out.Note, err = json.Marshal(m.note)
	return out, err
}

// unsaved classifies what kept a sentry from saving its memory.
func unsaved(id string, err error) error {
	if remote, ok := errors.AsType[urpc.RemoteError](err); ok {
		if strings.Contains(remote.Message, unix.ENOSPC.Error()) {
			return diskFull(id, err)
		}
		return api.Errorf(api.CodeUnsupported, "suspend sandbox %s: gVisor cannot save what it has open: %.300s", id, remote.Message).
			WithHint("end the program that has it open, or stop the sandbox").WithCause(err)
	}
	return err
}

// unstored classifies what kept the saved memory from the disk.
func unstored(id string, err error) error {
	if errors.Is(err, unix.ENOSPC) {
		return diskFull(id, err)
	}
	return err
}

func diskFull(id string, err error) error {
	return api.Errorf(api.CodeNoCapacity, "suspend sandbox %s: the disk is full", id).WithHint("free space where Cloche keeps its state, and try again").WithCause(err)
}

// openMemory opens the files that a sandbox continues from. They are read again by the sentry, from the same descriptors.
func (e *Engine) openMemory(ctx context.Context, m *engine.Memory, note memoryNote, mounts []engine.Mount) (files []*os.File, err error) {
	defer func() {
		if err != nil {
			closeAll(files)
		}
	}()
	if err := compareHostFiles(note.Files, mounts); err != nil {
		return nil, err
	}
	for n, name := range memoryFiles {
		f, err := checkpoint.Open(ctx, m.Dir, name, e.opts.CheckpointKey, note.Sizes[n])
		switch {
		case errors.Is(err, checkpoint.ErrKey):
			return files, api.Errorf(api.CodeState, "the memory of the sandbox is encrypted, and none of the daemon's keys is the key of it").
				WithHint("give the daemon that key in the setting checkpoints.key_file").WithCause(err)
		case errors.Is(err, checkpoint.ErrDamaged):
			return files, memoryChanged(name).WithCause(errors.Join(engine.ErrMemoryRefused, err))
		case err != nil:
			return files, fmt.Errorf("open the memory: %w", err)
		}
		files = append(files, f)
		if m.Checked {
			continue
		}
		_, sum, err := e.sums.Of(ctx, f)
		if err != nil {
			return files, err
		}
		if sum != note.Sums[n] {
			return files, memoryChanged(name)
		}
	}
	return files, nil
}

// memoryChanged is the error about a file of a memory that is not what was saved.
func memoryChanged(name string) *api.Error {
	return api.Errorf(api.CodeInternal, "the saved memory of the sandbox has changed: the checksum of its file %q is another", name).
		WithHint("stop the sandbox and start it again, without what its programs had in memory").WithCause(engine.ErrMemoryRefused)
}

// checked are the files of a memory, whose checksums are compared while the sentry boots.
type checked struct {
	done  chan struct{} // closed when what follows is set
	files []*os.File
	err   error
}

// checkMemory begins to open and check the files of the plan's memory, and opens the executable that continues from them: a
// memory of another version of gVisor needs the executable that saved it.
func (c *creation) checkMemory(ctx context.Context) error {
	m, k := c.plan.Memory, &checked{done: make(chan struct{})}
	var note memoryNote
	if err := json.Unmarshal(m.Note, &note); err != nil {
		return fmt.Errorf("read the note of the memory: %w", err)
	}
	if note.GVisor != c.e.version {
		x, err := c.e.executables.openHash(ctx, note.Executable)
		if err != nil && !errors.Is(err, errNotKept) {
			return err
		}
		if err != nil {
			return api.Errorf(api.CodeUnsupported, "the memory of the sandbox was saved by gVisor %.40q, and this cloche has %.40q", note.GVisor, c.e.version).
				WithHint("resume it with the cloche that suspended it").WithCause(errors.Join(engine.ErrMemoryRefused, err))
		}
		c.executable.close()
		c.executable, c.gvisor = x, note.GVisor
	}
	c.memory = k
	c.undo.Add(k.close)
	go func() {
		defer close(k.done)
		k.files, k.err = c.e.openMemory(ctx, m, note, c.plan.Mounts)
	}()
	return nil
}

// close waits for the check and closes the files. It may be called again.
func (k *checked) close() {
	<-k.done
	closeAll(k.files)
	k.files = nil
}

// restore makes the sandbox continue from its memory.
func (c *creation) restore(ctx context.Context) error {
	defer c.memory.close()
	<-c.memory.done
	files, err := c.memory.files, c.memory.err
	if err != nil {
		return err
	}
	args := networkArgs(c.plan.Link)
	args.IsRestore = true
	if err := c.inst.ctl.call(ctx, callSetNetwork, args, nil); err != nil {
		return err
	}
	err = c.inst.ctl.callLong(ctx, callRestore, &restoration{FilePayload: urpc.FilePayload{Files: files}, HavePagesFile: true}, nil)
	c.inst.ctl.drop() // the control server has closed them
	return unrestored(c.plan.ID, err)
}

// unrestored classifies what kept a sentry from restoring a memory.
func unrestored(id string, err error) error {
	remote, ok := errors.AsType[urpc.RemoteError](err)
	if !ok {
		return err
	}
	// What gVisor's cpuid.ErrIncompatible says.
	_, lacks, ok := strings.Cut(remote.Message, "incompatible FeatureSet: ")
	if !ok {
		return err
	}
	return api.Errorf(api.CodeUnsupported, "the memory of sandbox %s was saved on a processor that this machine's cannot stand in for: %.300s", id, lacks).
		WithHint("resume it on a machine with such a processor; or stop the sandbox and start it again, without what its programs had in memory").
		WithCause(errors.Join(engine.ErrMemoryRefused, err))
}

// A restored sentry whose agent cannot be reached within reachTime is ended, and the memory restored again, once. Agents before
// protocol version 15 left connections in TIME-WAIT in the memory: about one of a thousand restores answers no connection, while
// others of the same memory do.
const reachTime = 3 * time.Second

// resume makes an instance that continues from its memory.
func (e *Engine) resume(ctx context.Context, p engine.Plan) (engine.Instance, error) {
	inst, mute, err := e.restore(ctx, p)
	if mute && ctx.Err() == nil {
		e.log.Warn("a restored sandbox answers no connection; it is restored again", "sandbox", p.ID, "error", err)
		inst, _, err = e.restore(ctx, p)
	}
	if err != nil {
		return nil, err
	}
	e.wantSentry(p)
	return inst, nil
}

// restore makes an instance once. mute means that it was restored, and its agent could not be reached.
func (e *Engine) restore(ctx context.Context, p engine.Plan) (inst *instance, mute bool, err error) {
	c := &creation{e: e, plan: p, clean: context.WithoutCancel(ctx)}
	inst, err = c.make(ctx, lifecycle.Step{Name: "restore the memory", Do: c.restore}, lifecycle.Step{Name: "reach the agent", Do: func(ctx context.Context) error {
		err := c.reach(ctx)
		mute = err != nil
		return err
	}})
	return inst, mute, err
}

// reach connects to the restored agent. The next Dial gets the connection.
func (c *creation) reach(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, reachTime)
	defer cancel()
	conn, err := c.inst.forward(ctx)
	if err == nil {
		c.inst.keepBorn(conn, nil)
	}
	return err
}
