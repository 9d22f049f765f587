package mockcore

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/core"
	"github.com/cloche-dev/cloche/internal/httpapi"
)

// process is a running program. Its output is handed over without a buffer, so
// that a reader that does not read holds it up.
type process struct {
	id     string
	argv   []string
	out    chan core.Event
	stdin  *io.PipeReader
	stdinW *io.PipeWriter

	mu       sync.Mutex
	sig      string
	size     api.Size
	resized  chan struct{} // closed at the first Resize
	sigs     chan struct{} // closed at the first signal
	left     chan struct{} // closed when the stream was closed
	leave    func()
	finished chan struct{}
	result   api.Result
	log      []api.LogEntry
	offsets  map[api.Stream]int64 // "" counts both
	sent     atomic.Uint64
}

func (p *process) signal(name string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.sig == "" {
		p.sig = name
		close(p.sigs)
	}
}

// write is the program's output. Output without a reader is only logged.
func (p *process) write(s api.Stream, format string, args ...any) bool {
	return p.emit(s, fmt.Appendf(nil, format, args...))
}

func (p *process) emit(s api.Stream, data []byte) bool {
	p.mu.Lock()
	if len(p.log) < 1000 {
		e := api.LogEntry{ExecID: p.id, Stream: s, Offset: p.offsets[s], Position: p.offsets[""], Time: Epoch(), Data: bytes.Clone(data)}
		p.log = append(p.log, e)
		p.offsets[s] += int64(len(data))
		p.offsets[""] += int64(len(data))
	}
	p.mu.Unlock()
	select {
	case p.out <- core.Event{Stream: s, Seq: p.sent.Load(), Data: data}:
		p.sent.Add(1)
		return true
	case <-p.sigs:
		return false
	case <-p.left:
		return true
	}
}

// program is what argv does; it returns the exit code.
func (p *process) program() int {
	switch p.argv[0] {
	case "echo":
		p.write(api.Stdout, "%s\n", strings.Join(p.argv[1:], " "))
	case "both": // output of both streams, interleaved
		for i := range 4 {
			p.write([]api.Stream{api.Stdout, api.Stderr}[i%2], "%d\n", i)
		}
	case "cat":
		buf := make([]byte, 32<<10)
		for {
			n, err := p.stdin.Read(buf)
			if n > 0 && !p.emit(api.Stdout, bytes.Clone(buf[:n])) || err != nil {
				return 0
			}
		}
	case "size": // prints the terminal's size once it was changed
		select {
		case <-p.resized:
			p.mu.Lock()
			size := p.size
			p.mu.Unlock()
			p.write(api.Stdout, "%dx%d\n", size.Rows, size.Cols)
		case <-p.sigs:
		}
	case "sleep":
		p.write(api.Stdout, "asleep\n")
		<-p.sigs
	case "yes":
		for p.emit(api.Stdout, bytes.Repeat([]byte("y\n"), 16<<10)) {
			select {
			case <-p.left:
				<-p.sigs
			default:
			}
		}
	case "false":
		return 1
	}
	return 0
}

func argv(r api.ExecRequest) []string {
	switch {
	case r.Python == "print(6*7)":
		return []string{"echo", "42"}
	case r.Shell != "":
		return strings.Fields(r.Shell)
	}
	return r.Argv
}

// start begins a program of a sandbox.
func (c *Core) start(caller core.Caller, ref string, req api.ExecRequest) (*process, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	sb, err := c.find(caller, ref)
	if err != nil {
		return nil, err
	}
	if sb.record.State != api.StateRunning {
		return nil, api.Errorf(api.CodeState, "sandbox %q is %s", ref, sb.record.State)
	}
	av := argv(req)
	if len(av) == 0 {
		return nil, api.Invalid("argv", "argv is empty")
	}
	if av[0] == "missing" {
		return nil, api.Errorf(api.CodeCommandNotFound, "there is no program %q", av[0])
	}
	c.serial++
	p := &process{
		id: fmt.Sprintf("ex-%d", c.serial), argv: av, out: make(chan core.Event), offsets: map[api.Stream]int64{},
		resized: make(chan struct{}), sigs: make(chan struct{}), left: make(chan struct{}), finished: make(chan struct{}),
	}
	p.leave = sync.OnceFunc(func() { close(p.left) })
	p.stdin, p.stdinW = io.Pipe()
	sb.procs = append(sb.procs, p)
	c.programs++
	c.change()
	// The program ends with its sandbox, whose Remove signals it.
	go func() {
		code := p.program()
		p.stdin.Close()
		p.mu.Lock()
		p.result = api.Result{ExecID: p.id, Stdout: api.Bytes{}, Stderr: api.Bytes{}, DurationMS: 1, Signal: p.sig}
		if p.sig == "" {
			p.result.ExitCode = &code
		}
		p.mu.Unlock()
		close(p.finished)
		c.mu.Lock()
		c.programs--
		c.change()
		c.mu.Unlock()
	}()
	return p, nil
}

// Sent counts the pieces of output that were taken from all programs.
func (c *Core) Sent() int64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	var n int64
	for _, sb := range c.sandboxes {
		for _, p := range sb.procs {
			n += int64(p.sent.Load())
		}
	}
	return n
}

// stream is a process as its client sees it.
type stream struct {
	*process
	ended   bool
	onClose func()
}

func (s *stream) ExecID() string { return s.id }

func (s *stream) Recv() (core.Event, error) {
	if s.ended {
		return core.Event{}, io.EOF
	}
	select {
	case ev := <-s.out:
		return ev, nil
	case <-s.finished:
		s.ended = true
		s.mu.Lock()
		defer s.mu.Unlock()
		r := s.result
		return core.Event{Exit: &r}, nil
	case <-s.left:
		return core.Event{}, api.Errorf(api.CodeCanceled, "the stream was closed")
	}
}

func (s *stream) Write(p []byte) (int, error) {
	select {
	case <-s.left:
		return 0, io.ErrClosedPipe
	default:
		return s.stdinW.Write(p)
	}
}

func (s *stream) CloseWrite() error { return s.stdinW.Close() }

func (s *stream) Resize(rows, cols uint16) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.size == (api.Size{}) {
		s.size = api.Size{Rows: rows, Cols: cols}
		close(s.resized)
	}
	return nil
}

func (s *stream) Signal(name string) error {
	s.signal(name)
	return nil
}

func (s *stream) Close() error {
	s.leave()
	s.stdinW.CloseWithError(io.ErrClosedPipe)
	if s.onClose != nil {
		s.onClose()
	}
	return nil
}

// ExecStream starts one of the few programs: echo, both, cat, size, sleep, yes,
// true, false; "missing" does not exist, and whatever else is true.
func (c *Core) ExecStream(_ context.Context, caller core.Caller, ref string, req api.ExecRequest) (httpapi.Stream, error) {
	p, err := c.start(caller, ref, req)
	if err != nil {
		return nil, err
	}
	return &stream{process: p}, nil
}

// Exec collects all output. A timeout ends the program.
func (c *Core) Exec(ctx context.Context, caller core.Caller, ref string, req api.ExecRequest) (api.Result, error) {
	p, err := c.start(caller, ref, req)
	if err != nil {
		return api.Result{}, err
	}
	st := &stream{process: p}
	defer st.leave()
	stop := context.AfterFunc(ctx, p.leave)
	defer stop()
	// The input is given up when the program ends, which closes its pipe.
	go func() {
		st.Write(req.Stdin)
		st.CloseWrite()
	}()
	timedOut := atomic.Bool{}
	if req.TimeoutMS != nil {
		t := time.AfterFunc(time.Duration(*req.TimeoutMS)*time.Millisecond, func() {
			timedOut.Store(true)
			p.signal("KILL")
		})
		defer t.Stop()
	}
	var out, errs []byte
	var chunks []api.Chunk
	for {
		ev, err := st.Recv()
		if err != nil {
			return api.Result{}, err
		}
		if ev.Exit == nil {
			if ev.Stream == api.Stderr {
				errs = append(errs, ev.Data...)
			} else {
				out = append(out, ev.Data...)
			}
			chunks = append(chunks, api.Chunk{Stream: ev.Stream, Len: int64(len(ev.Data))})
			continue
		}
		r := *ev.Exit
		r.Stdout, r.Stderr, r.Chunks, r.TimedOut = out, errs, chunks, timedOut.Load()
		r.StdoutInfo.Kept, r.StderrInfo.Kept = int64(len(out)), int64(len(errs))
		return r, nil
	}
}

// Run removes the sandbox whatever happens.
func (c *Core) Run(ctx context.Context, caller core.Caller, req api.RunRequest) (api.RunResult, error) {
	sb, err := c.Create(ctx, caller, req.Spec, nil)
	if err != nil {
		return api.RunResult{}, err
	}
	if !req.Keep {
		defer c.Remove(ctx, caller, sb.ID)
	}
	res, err := c.Exec(ctx, caller, sb.ID, req.Exec)
	return api.RunResult{Sandbox: sb, Result: res}, err
}

// RunStream removes the sandbox when the stream is closed.
func (c *Core) RunStream(ctx context.Context, caller core.Caller, req api.RunRequest, progress func(string)) (api.Sandbox, httpapi.Stream, error) {
	sb, err := c.Create(ctx, caller, req.Spec, progress)
	if err != nil {
		return sb, nil, err
	}
	remove := sync.OnceFunc(func() {
		if !req.Keep {
			c.Remove(context.WithoutCancel(ctx), caller, sb.ID)
		}
	})
	p, err := c.start(caller, sb.ID, req.Exec)
	if err != nil {
		remove()
		return sb, nil, err
	}
	return sb, &stream{process: p, onClose: remove}, nil
}
