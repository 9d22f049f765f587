package mockcore

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"reflect"
	"strings"
	"time"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/core"
)

// managed is a managed process: its whole input and output are kept. Everything
// in it is guarded by its Core's lock.
type managed struct {
	c       *Core
	sb      *sandbox
	spec    api.ProcessSpec
	rec     api.Process
	log     []api.LogEntry
	offsets map[api.Stream]int64
	kept    int64 // position of the first byte that is still there
	stdin   []byte
	read    int // so much of stdin the program has read
	killed  string
	size    api.Size
	writer  *attachment
}

// kill is called with the lock held.
func (p *managed) kill(name string) {
	if p.killed == "" {
		p.killed = name
	}
	p.c.change()
}

// StartProcess starts one of the few programs: echo, both, cat, sleep, size,
// false and true; "missing" does not exist. It is ready at once where it has a
// readiness.
func (c *Core) StartProcess(_ context.Context, caller core.Caller, ref string, spec api.ProcessSpec) (api.Process, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	sb, err := c.find(caller, ref)
	if err != nil {
		return api.Process{}, err
	}
	if sb.record.State != api.StateRunning {
		return api.Process{}, api.Errorf(api.CodeState, "sandbox %q is %s", ref, sb.record.State)
	}
	if old := sb.managed[spec.ExecID]; old != nil {
		if !reflect.DeepEqual(old.spec, spec) {
			return api.Process{}, api.Errorf(api.CodeExists, "a process with id %q exists", spec.ExecID)
		}
		return old.rec, nil
	}
	av := argv(spec.ExecRequest)
	if len(av) == 0 {
		return api.Process{}, api.Invalid("argv", "argv is empty")
	}
	if av[0] == "missing" {
		return api.Process{}, api.Errorf(api.CodeCommandNotFound, "there is no program %q", av[0])
	}
	c.serial++
	p := &managed{c: c, sb: sb, spec: spec, offsets: map[api.Stream]int64{}, stdin: bytes.Clone(spec.Stdin)}
	p.rec = api.Process{
		ExecID: cmp.Or(spec.ExecID, fmt.Sprintf("p-%d", c.serial)), Name: spec.Name, Argv: av, State: api.ProcessRunning,
		Managed: true, PID: c.serial, TTY: spec.TTY, StartedAt: Epoch(), Running: true,
		StdinOffset: int64(len(spec.Stdin)), StdinOpen: spec.OpenStdin || spec.TTY,
	}
	if spec.Ready != nil {
		at := Epoch()
		p.rec.State, p.rec.ReadyAt = api.ProcessReady, &at
	}
	sb.managed[p.rec.ExecID] = p
	sb.order = append(sb.order, p.rec.ExecID)
	c.programs++
	c.publish(sb, api.EventProcessStarted, &p.rec)
	go p.run() // it ends with its sandbox, whose Remove kills it
	return p.rec, nil
}

// run is the program.
func (p *managed) run() {
	p.c.mu.Lock()
	defer p.c.mu.Unlock()
	code := 0
	switch p.rec.Argv[0] {
	case "echo":
		p.write(api.Stdout, strings.Join(p.rec.Argv[1:], " ")+"\n")
	case "both":
		for i := range 4 {
			p.write([]api.Stream{api.Stdout, api.Stderr}[i%2], fmt.Sprintf("%d\n", i))
		}
	case "cat":
		for p.wait(func() bool { return p.read < len(p.stdin) || !p.rec.StdinOpen }) && p.read < len(p.stdin) {
			n := min(32<<10, len(p.stdin)-p.read)
			p.write(api.Stdout, string(p.stdin[p.read:p.read+n]))
			p.read += n
		}
	case "size":
		if p.wait(func() bool { return p.size != api.Size{} }) {
			p.write(api.Stdout, fmt.Sprintf("%dx%d\n", p.size.Rows, p.size.Cols))
		}
	case "sleep":
		p.wait(func() bool { return false })
	case "false":
		code = 1
	}
	at := Epoch()
	p.rec.State, p.rec.Running, p.rec.EndedAt, p.rec.StdinOpen = api.ProcessExited, false, &at, false
	if p.rec.Signal = p.killed; p.killed == "" {
		p.rec.ExitCode = &code
	}
	p.c.programs--
	p.c.publish(p.sb, api.EventProcessExited, &p.rec)
}

// wait is called with the lock held, which it gives up meanwhile. It reports
// whether ok holds; otherwise the process was killed.
func (p *managed) wait(ok func() bool) bool {
	for p.killed == "" && !ok() {
		ch := p.c.changed
		p.c.mu.Unlock()
		<-ch
		p.c.mu.Lock()
	}
	return p.killed == ""
}

func (p *managed) write(s api.Stream, data string) {
	e := api.LogEntry{ExecID: p.rec.ExecID, Stream: s, Offset: p.offsets[s], Position: p.rec.Position, Time: Epoch(), Data: []byte(data)}
	p.log = append(p.log, e)
	p.offsets[s] += int64(len(data))
	p.rec.Position += int64(len(data))
	if lines := strings.Split(strings.TrimSpace(data), "\n"); s == api.Stderr || p.rec.TTY {
		p.rec.LastStderr = lines[len(lines)-1]
	}
	p.c.change()
}

// input takes bytes that belong at an offset, and returns the offset behind
// them. It is called with the lock held.
func (p *managed) input(at int64, data []byte) (int64, error) {
	end := at + int64(len(data))
	repeat := p.rec.StdinOffset - at
	if repeat < 0 {
		return end, api.Invalid("offset", "input at offset %d, and the process has %d", at, p.rec.StdinOffset)
	}
	if repeat >= int64(len(data)) {
		return end, nil
	}
	if !p.rec.StdinOpen {
		return end, api.Errorf(api.CodeState, "the input of process %q is closed", p.rec.ExecID)
	}
	p.stdin = append(p.stdin, data[repeat:]...)
	p.rec.StdinOffset = end
	p.c.change()
	return end, nil
}

func (p *managed) closeInput() {
	p.rec.StdinOpen = false
	p.c.change()
}

// process is called with the lock held.
func (c *Core) process(caller core.Caller, ref, id string) (*managed, error) {
	sb, err := c.find(caller, ref)
	if err != nil {
		return nil, err
	}
	if p := sb.managed[id]; p != nil {
		return p, nil
	}
	return nil, api.Errorf(api.CodeNotFound, "there is no process %q", id).WithHint("list them with `cloche ps`")
}

// GetProcess finds a managed process.
func (c *Core) GetProcess(_ context.Context, caller core.Caller, ref, id string) (api.Process, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	p, err := c.process(caller, ref, id)
	if err != nil {
		return api.Process{}, err
	}
	return p.rec, nil
}

// WaitProcess waits at most a minute.
func (c *Core) WaitProcess(ctx context.Context, caller core.Caller, ref, id string, w api.WaitRequest) (api.Process, error) {
	d := time.Minute
	if w.TimeoutMS > 0 {
		d = min(d, time.Duration(w.TimeoutMS)*time.Millisecond)
	}
	t := time.NewTimer(d)
	defer t.Stop()
	for {
		c.mu.Lock()
		p, err := c.process(caller, ref, id)
		ch := c.changed
		var rec api.Process
		if err == nil {
			rec = p.rec
		}
		c.mu.Unlock()
		if err != nil || rec.State.Ended() || w.Ready && rec.State == api.ProcessReady {
			return rec, err
		}
		select {
		case <-ch:
		case <-t.C:
			return rec, nil
		case <-ctx.Done():
			return rec, ctx.Err()
		}
	}
}

// SignalProcess kills the program, whatever the signal is.
func (c *Core) SignalProcess(_ context.Context, caller core.Caller, ref, id string, r api.SignalRequest) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	p, err := c.process(caller, ref, id)
	switch {
	case err != nil:
		return err
	case api.SignalNumber(r.Signal) == 0:
		return api.Invalid("signal", "%q is no signal", r.Signal)
	case !p.rec.Running:
		return api.Errorf(api.CodeState, "process %q has ended", id)
	}
	p.kill(r.Signal)
	return nil
}

// ResizeProcess keeps the size for the program "size".
func (c *Core) ResizeProcess(_ context.Context, caller core.Caller, ref, id string, size api.Size) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	p, err := c.process(caller, ref, id)
	if err != nil {
		return err
	}
	return p.resize(size)
}

func (p *managed) resize(size api.Size) error {
	if size.Rows == 0 || size.Cols == 0 {
		return api.Invalid("rows", "a terminal of %d × %d was asked for", size.Rows, size.Cols)
	}
	p.size = size
	p.c.change()
	return nil
}

// WriteStdin takes all of r.
func (c *Core) WriteStdin(ctx context.Context, caller core.Caller, ref, id string, offset *int64, r io.Reader, end bool) (api.StdinAck, error) {
	var ack api.StdinAck
	c.mu.Lock()
	p, err := c.process(caller, ref, id)
	if err == nil {
		if ack.Offset = p.rec.StdinOffset; offset != nil {
			ack.Offset = *offset
		}
		if p.writer != nil && p.writer.exclusive {
			err = inputHeld(id)
		}
	}
	c.mu.Unlock()
	if err != nil {
		return ack, err
	}
	buf := make([]byte, 32<<10)
	for {
		n, rerr := r.Read(buf)
		c.mu.Lock()
		if n > 0 {
			ack.Offset, err = p.input(ack.Offset, buf[:n])
		}
		// As core does, which fills a buffer.
		whole := errors.Is(rerr, io.EOF) || errors.Is(rerr, io.ErrUnexpectedEOF)
		if err == nil && whole && end {
			p.closeInput()
		}
		c.mu.Unlock()
		if err == nil && rerr != nil && rerr != io.EOF {
			err = rerr
		}
		if err != nil || rerr != nil {
			return ack, err
		}
	}
}

// RemoveProcess kills it and forgets it.
func (c *Core) RemoveProcess(_ context.Context, caller core.Caller, ref, id string) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	p, err := c.process(caller, ref, id)
	if err != nil {
		return err
	}
	p.kill("KILL")
	delete(p.sb.managed, id)
	return nil
}

// Forget drops the output of a managed process before a position.
func (c *Core) Forget(ref, id string, position int64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if p, err := c.process(core.Caller{Operator: true}, ref, id); err == nil {
		p.kept = position
		c.change()
	}
}

// Processes lists the programs, those of execs first.
func (c *Core) Processes(_ context.Context, caller core.Caller, ref string) ([]api.Process, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	sb, err := c.find(caller, ref)
	if err != nil {
		return nil, err
	}
	var l []api.Process
	for _, p := range sb.procs {
		row := api.Process{ExecID: p.id, Argv: p.argv, State: api.ProcessRunning, StartedAt: Epoch(), Running: true}
		select {
		case <-p.finished:
			at := Epoch()
			row.State, row.Running, row.EndedAt = api.ProcessExited, false, &at
			row.ExitCode, row.Signal = p.result.ExitCode, p.result.Signal
		default:
		}
		l = append(l, row)
	}
	for _, id := range sb.order {
		if p := sb.managed[id]; p != nil {
			l = append(l, p.rec)
		}
	}
	return l, nil
}
