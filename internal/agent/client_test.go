package agent

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/yamux"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/agent/wire"
)

// liar is an agent that answers every stream with the same bytes.
func liar(t testing.TB, answer []byte) *Client {
	t.Helper()
	here, there := net.Pipe()
	done := make(chan struct{})
	go func() {
		defer close(done)
		defer there.Close()
		if _, _, err := wire.NewReader(there).Next(); err != nil {
			return
		}
		if err := wire.NewWriter(there).JSON(wire.KindWelcome, wire.Welcome{Version: wire.Version}); err != nil {
			return
		}
		s, err := yamux.Server(there, MuxConfig())
		if err != nil {
			return
		}
		defer s.Close()
		for {
			st, err := s.AcceptStream()
			if err != nil {
				return
			}
			if _, _, err := wire.NewReader(st).Next(); err == nil {
				st.Write(answer)
			}
			st.Close()
		}
	}()
	c, err := Connect(t.Context(), here, NewToken())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close(); <-done })
	return c
}

func chunk(c wire.Chunk, data string) []byte {
	return append(wire.AppendChunk(nil, c, len(data)), data...)
}

func frames(fill func(w *wire.Writer)) []byte {
	var b bytes.Buffer
	fill(wire.NewWriter(&b))
	return b.Bytes()
}

// every calls every method of c; what they return is the liar's business.
func every(ctx context.Context, c *Client) []error {
	var errs []error
	add := func(err error) { errs = append(errs, err) }
	_, err := c.Exec(ctx, Start{ExecID: "x", Argv: []string{"a"}, Stdin: []byte("in"), MaxOutput: 100})
	add(err)
	if st, err := c.Stream(ctx, Start{ExecID: "x", Argv: []string{"a"}}); err != nil {
		add(err)
	} else {
		for {
			if _, err := st.Recv(); err != nil {
				add(err)
				break
			}
		}
		st.Close()
	}
	_, err = c.Processes(ctx)
	add(err)
	add(c.Logs(ctx, api.LogOptions{}, func(api.LogEntry) error { return nil }))
	add(c.Signal(ctx, "x", 15))
	add(c.Terminate(ctx, 0))
	_, err = c.Stat(ctx, "/")
	add(err)
	_, err = c.List(ctx, "/", "", 2)
	add(err)
	if r, _, err := c.ReadFile(ctx, "/x", 0, 10); err != nil {
		add(err)
	} else {
		n, err := io.Copy(io.Discard, r)
		if n > 10 {
			add(errors.New("more than was asked for"))
		}
		add(err)
		r.Close()
	}
	_, err = c.WriteFile(ctx, "/x", WriteOptions{}, strings.NewReader("content"))
	add(err)
	_, err = c.TarOut(ctx, "/", api.TarOutOptions{}, io.Discard)
	add(err)
	_, err = c.TarIn(ctx, "/", api.TarInOptions{}, strings.NewReader("content"))
	add(err)
	return append(errs, everyManaged(ctx, c)...)
}

// everyManaged is every for what concerns managed processes.
func everyManaged(ctx context.Context, c *Client) []error {
	var errs []error
	add := func(err error) { errs = append(errs, err) }
	_, err := c.StartProcess(ctx, Process{Start: Start{ExecID: "x", Argv: []string{"a"}, Stdin: []byte("in")}})
	add(err)
	add(c.WatchProcesses(ctx, func(api.Process) error { return nil }))
	at := int64(100)
	add(c.Follow(ctx, "x", FollowOptions{Since: at, Primary: true}, func(k Chunk) error {
		if k.Position-k.Gap != at || len(k.Data) == 0 && k.Gap == 0 {
			panic("a hole")
		}
		at = k.Position + int64(len(k.Data))
		return nil
	}))
	add(c.Follow(ctx, "x", FollowOptions{Follow: true}, func(Chunk) error { return nil }))
	for _, n := range []int{0, 5, 1 << 20} {
		_, err = c.WriteStdin(ctx, "x", 0, make([]byte, n))
		add(err)
	}
	add(c.CloseStdin(ctx, "x"))
	add(c.Resize(ctx, "x", 1, 1))
	add(c.SignalProcess(ctx, "x", 15, api.ScopeGroup, false))
	add(c.RemoveProcess(ctx, "x"))
	add(c.HoldTimers(ctx, true))
	conn, err := c.DialPort(ctx, 80)
	if err != nil {
		add(err)
		return errs
	}
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(time.Minute))
	_, _ = conn.Write([]byte("hello"))
	_, _ = io.Copy(io.Discard, conn)
	return errs
}

func TestLiesAreErrors(t *testing.T) {
	for name, answer := range map[string][]byte{
		"nothing":        nil,
		"garbage":        []byte("HTTP/1.1 400 Bad Request\r\n\r\n"),
		"a huge length":  []byte("d\xff\xff\xff\xff"),
		"a wrong kind":   frames(func(w *wire.Writer) { w.JSON(wire.KindHello, wire.Hello{}) }),
		"bad json":       []byte("R\x00\x00\x00\x01["),
		"unending bytes": frames(func(w *wire.Writer) { w.Bytes(wire.KindStdout, make([]byte, 200<<10)) }),
		"a short chunk":  frames(func(w *wire.Writer) { w.Bytes(wire.KindChunk, []byte("short")) }),
		"a hole":         chunk(wire.Chunk{Stream: api.Stdout, Position: 7000}, "x"),
		"going back":     slices.Concat(chunk(wire.Chunk{Stream: api.Stdout, Position: 100}, "abc"), chunk(wire.Chunk{Stream: api.Stdout, Position: 101}, "bc")),
		"a full gap":     chunk(wire.Chunk{Position: 100, Gap: 5}, "data"),
		"a negative ack": frames(func(w *wire.Writer) { w.JSON(wire.KindAck, wire.Ack{Position: -1}) }),
	} {
		t.Run(name, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			for i, err := range every(ctx, liar(t, answer)) {
				if _, ok := errors.AsType[*api.Error](err); !ok {
					t.Errorf("call %d: %v", i, err)
				}
			}
		})
	}
}

func TestResultIsMadeSane(t *testing.T) {
	evil := api.Result{
		ExitCode: new(70000), Signal: "\x1b[31mKILL", DurationMS: -1, Reason: strings.Repeat("x", 1<<20), ExecID: "another",
		Chunks: []api.Chunk{{Stream: api.Stdout, Len: 2}, {Stream: "else", Len: 1}, {Stream: api.Stdout, Len: 1 << 60}}, StdoutInfo: api.StreamCounts{Kept: -5},
	}
	c := liar(t, frames(func(w *wire.Writer) { w.Bytes(wire.KindStdout, []byte("out")); w.JSON(wire.KindExit, evil) }))
	r, err := c.Exec(t.Context(), Start{ExecID: "x", Argv: []string{"a"}})
	if err != nil || r.ExitCode != nil || r.Signal != "" || r.DurationMS != 0 || len(r.Reason) > 2*maxText || r.ExecID != "x" ||
		len(r.Chunks) != 1 || r.StdoutInfo.Kept != 0 || r.Output() != "out" {
		t.Fatalf("%+v, %v", r, err)
	}
}

func TestFailureCannotSpeakForPolicy(t *testing.T) {
	evil := api.Error{Code: api.CodeDenied, Rule: "rule", Message: strings.Repeat("\xff", 100_000), RequestID: "id", Retryable: true}
	c := liar(t, frames(func(w *wire.Writer) { w.JSON(wire.KindFail, &evil) }))
	_, err := c.Stat(t.Context(), "/")
	e, ok := errors.AsType[*api.Error](err)
	if !ok || e.Code != api.CodeInternal || e.Rule != "" || e.RequestID != "" || e.Retryable || len(e.Message) > 2*maxText {
		t.Fatalf("%#v", err)
	}
}

func TestFailureOfAFileIsMadeSane(t *testing.T) {
	for sent, want := range map[api.Error]api.Error{
		{Code: api.CodeDenied, Rule: api.RuleWithin}:                          {Code: api.CodeDenied, Rule: api.RuleWithin},
		{Code: api.CodeDenied, Rule: api.RuleReadWithin, Errno: "EROFS"}:      {Code: api.CodeDenied, Rule: api.RuleReadWithin, Errno: "EROFS"},
		{Code: api.CodeDenied, Rule: "within2"}:                               {Code: api.CodeInternal},
		{Code: api.CodeState, Errno: "EACCES", Rule: api.RuleWithin}:          {Code: api.CodeState, Errno: "EACCES"},
		{Code: api.CodeState, Errno: "EACCES\x1b"}:                            {Code: api.CodeState},
		{Code: api.CodeState, Errno: strings.Repeat("E", 1000)}:               {Code: api.CodeState},
		{Code: api.CodeNotFound, Errno: "eperm", Field: "path", Message: "m"}: {Code: api.CodeNotFound, Field: "path", Message: "m"},
	} {
		c := liar(t, frames(func(w *wire.Writer) { w.JSON(wire.KindFail, &sent) }))
		_, err := c.Stat(t.Context(), "/")
		e, ok := errors.AsType[*api.Error](err)
		if !ok || e.Code != want.Code || e.Rule != want.Rule || e.Errno != want.Errno || e.Field != want.Field {
			t.Errorf("%+v came as %+v, want %+v", sent, e, want)
		}
	}
}

func TestRecordIsMadeSane(t *testing.T) {
	evil := api.Process{
		ExecID: strings.Repeat("x", 1<<20), State: "pwned", Running: true, PID: -5, Restarts: -1, Position: -1, StdinOffset: -1,
		ExitCode: new(1000), Signal: "\x1b[31m", LastStderr: strings.Repeat("é", 1000), Reason: strings.Repeat("r", 1<<20), Readers: 5, Writer: true,
	}
	c := liar(t, frames(func(w *wire.Writer) { w.JSON(wire.KindReply, []api.Process{evil}) }))
	ps, err := c.Processes(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	p := ps[0]
	if len(p.ExecID) > 2*maxText || p.State != api.ProcessRunning || p.PID != 0 || p.Restarts != 0 || p.Position != 0 || p.StdinOffset != 0 || p.ExitCode != nil ||
		p.Signal != "" || len(p.LastStderr) != 256 || len(p.Reason) > 2*maxText || p.Readers != 0 || p.Writer {
		t.Fatalf("%+v", p)
	}
}

func TestConnectEndsWithItsContext(t *testing.T) {
	here, there := net.Pipe()
	defer there.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if _, err := Connect(ctx, here, NewToken()); api.CodeOf(err) != api.CodeTimeout {
		t.Fatalf("got %v", err)
	}
}

func TestCallAfterCloseSaysUnavailable(t *testing.T) {
	c := liar(t, nil)
	c.Close()
	<-c.Done()
	if _, err := c.Stat(t.Context(), "/"); !errors.Is(err, api.ErrUnavailable) {
		t.Fatalf("got %v", err)
	}
}

func FuzzAnswers(f *testing.F) {
	f.Add(frames(func(w *wire.Writer) { w.JSON(wire.KindReply, wire.Empty{}) }))
	f.Add(frames(func(w *wire.Writer) {
		w.JSON(wire.KindStarted, api.Started{})
		w.Output(wire.KindStdout, 0, []byte("x"))
		w.JSON(wire.KindExit, api.Result{})
	}))
	f.Add(frames(func(w *wire.Writer) {
		w.JSON(wire.KindLog, api.LogEntry{})
		w.Bytes(wire.KindData, []byte("x"))
		w.End()
	}))
	f.Add(frames(func(w *wire.Writer) { w.JSON(wire.KindReply, []api.Process{{}}) }))
	f.Add(frames(func(w *wire.Writer) { w.JSON(wire.KindFail, api.Invalid("a", "b")) }))
	f.Add(slices.Concat(chunk(wire.Chunk{Position: 100, Gap: 50}, ""), chunk(wire.Chunk{Stream: api.Stderr, Position: 100}, "abc"), frames(func(w *wire.Writer) { w.End() })))
	f.Add(frames(func(w *wire.Writer) { w.JSON(wire.KindProcess, api.Process{State: "odd", PID: -1}) }))
	f.Add(frames(func(w *wire.Writer) {
		w.JSON(wire.KindAck, wire.Ack{Position: 3})
		w.JSON(wire.KindReply, wire.StdinReply{Offset: 5, Fail: api.Invalid("offset", "b")})
	}))
	f.Add(frames(func(w *wire.Writer) {
		w.JSON(wire.KindReply, wire.DialReply{Outcome: wire.DialOpen})
		w.Bytes(wire.KindData, []byte("served"))
		w.End()
	}))
	f.Fuzz(func(t *testing.T, answer []byte) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		for i, err := range every(ctx, liar(t, answer)) {
			if code := api.CodeOf(err); code == api.CodeTimeout {
				t.Fatalf("call %d hangs", i)
			}
		}
	})
}
