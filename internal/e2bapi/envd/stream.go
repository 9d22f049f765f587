package envd

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strconv"
	"time"

	"connectrpc.com/connect"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/core"
	"github.com/cloche-dev/cloche/internal/envdpb"
)

const (
	// usualKeepAlive is the time between keep-alives of a client that does not ask for another.
	usualKeepAlive = 90 * time.Second
	// maxKeepAlive bounds what a client can ask for, in seconds.
	maxKeepAlive = 3600
)

// keepAlive is after how long without a message a client wants one.
func keepAlive(h http.Header) time.Duration {
	if n, err := strconv.Atoi(h.Get("Keepalive-Ping-Interval")); err == nil && n > 0 {
		return time.Duration(min(n, maxKeepAlive)) * time.Second
	}
	return usualKeepAlive
}

// follow tells a client what becomes of a process: its start, its output from since on (nil is from
// now on), and its end. If the sandbox ends first, the request is cut.
func (s *Server) follow(ctx context.Context, sb Sandbox, e *process, since *int64, alive time.Duration, send func(*envdpb.ProcessEvent) error) error {
	a, err := s.core.Attach(ctx, sb.Caller, sb.Ref, e.id, api.AttachRequest{Since: since})
	if err != nil {
		return rpcError(err)
	}
	events, stop := pump(ctx, a)
	defer stop()
	start := &envdpb.ProcessEvent{Event: &envdpb.ProcessEvent_Start{Start: &envdpb.ProcessEvent_StartEvent{Pid: e.pid}}}
	if err := send(start); err != nil {
		return err
	}
	idle := time.NewTicker(alive)
	defer idle.Stop()
	for {
		select {
		case <-ctx.Done():
			return rpcError(ctx.Err())
		case <-idle.C:
			alive := &envdpb.ProcessEvent{Event: &envdpb.ProcessEvent_Keepalive{Keepalive: &envdpb.ProcessEvent_KeepAlive{}}}
			if err := send(alive); err != nil {
				return err
			}
		case ev := <-events:
			over, err := s.tell(ctx, e, ev, send)
			if over || err != nil {
				return err
			}
			idle.Reset(alive)
		}
	}
}

// received is one event of an attachment, or why there are no more.
type received struct {
	core.AttachEvent
	err error
}

// pump reads an attachment in a goroutine, which stop ends.
func pump(ctx context.Context, a Attachment) (events <-chan received, stop func()) {
	ctx, cancel := context.WithCancel(ctx)
	out, done := make(chan received), make(chan struct{})
	go func() {
		defer close(done)
		for {
			ev, err := a.Recv()
			ev.Data = slices.Clone(ev.Data) // it is valid until the next Recv
			select {
			case out <- received{ev, err}:
			case <-ctx.Done():
				return
			}
			if err != nil {
				return
			}
		}
	}()
	return out, func() {
		cancel()
		a.Close()
		<-done
	}
}

// tell sends one event to a client; over means that it was the last.
func (s *Server) tell(ctx context.Context, e *process, ev received, send func(*envdpb.ProcessEvent) error) (over bool, err error) {
	switch {
	case ev.err != nil:
		return true, s.interrupted(ctx, ev.err)
	case ev.Exit != nil:
		if ev.Exit.SandboxLost || ev.Exit.TerminalReason != "" || s.ending(ctx) {
			requestOf(ctx).cancel(errCut)
			return true, rpcError(context.Canceled)
		}
		if ev.Exit.TimedOut {
			return true, rpcError(context.DeadlineExceeded)
		}
		return true, send(endOf(*ev.Exit))
	case ev.Gap != nil:
		text := fmt.Sprintf("\n[%d bytes of output are no longer kept]\n", ev.Gap.Bytes)
		return false, send(dataOf(e.pty, api.Stderr, []byte(text)))
	case len(ev.Data) > 0:
		return false, send(dataOf(e.pty, ev.Stream, ev.Data))
	}
	return false, nil
}

// ending reports whether the sandbox of a request is being ended: core says so before it ends the first
// process. A process that ends then did not end by itself.
func (s *Server) ending(ctx context.Context) bool {
	sb := requestOf(ctx).sb
	is, err := s.core.Get(ctx, sb.Caller, sb.Ref)
	return api.CodeOf(err) == api.CodeNotFound || err == nil && is.State != api.StateRunning && !is.State.Held()
}

// interrupted is the end of a stream whose attachment failed. The end of the sandbox or of the daemon
// cuts the request: a client tells that apart from the end of a process by asking for the sandbox.
func (s *Server) interrupted(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return rpcError(ctx.Err())
	}
	if !errors.Is(err, io.EOF) && api.CodeOf(err) == api.CodeInternal {
		s.log.Error("follow a process", "sandbox", requestOf(ctx).sb.Ref, "error", err)
		return rpcError(err)
	}
	requestOf(ctx).cancel(errCut)
	return connect.NewError(connect.CodeUnavailable, err)
}

func dataOf(pty bool, stream api.Stream, data []byte) *envdpb.ProcessEvent {
	d := &envdpb.ProcessEvent_DataEvent{}
	switch {
	case pty:
		d.Output = &envdpb.ProcessEvent_DataEvent_Pty{Pty: data}
	case stream == api.Stderr:
		d.Output = &envdpb.ProcessEvent_DataEvent_Stderr{Stderr: data}
	default:
		d.Output = &envdpb.ProcessEvent_DataEvent_Stdout{Stdout: data}
	}
	return &envdpb.ProcessEvent{Event: &envdpb.ProcessEvent_Data{Data: d}}
}

// endOf is the end of a process, in the words of Go's os.ProcessState, which clients show.
func endOf(res api.Result) *envdpb.ProcessEvent {
	end := &envdpb.ProcessEvent_EndEvent{}
	switch {
	case res.ExitCode != nil:
		end.ExitCode, end.Exited = int32(*res.ExitCode), true
		end.Status = "exit status " + strconv.Itoa(*res.ExitCode)
	case res.Signal != "":
		end.ExitCode, end.Status = -1, "signal: "+signalText(res.Signal)
	default:
		end.ExitCode, end.Status = -1, "unknown: "+res.Reason
	}
	if end.ExitCode != 0 {
		end.Error = &end.Status
	}
	return &envdpb.ProcessEvent{Event: &envdpb.ProcessEvent_End{End: end}}
}

// signalText is how Go names a signal on Linux, or the name of the signal itself.
func signalText(name string) string {
	switch name {
	case "KILL":
		return "killed"
	case "TERM":
		return "terminated"
	case "INT":
		return "interrupt"
	case "HUP":
		return "hangup"
	case "QUIT":
		return "quit"
	case "ABRT":
		return "aborted"
	case "SEGV":
		return "segmentation fault"
	case "BUS":
		return "bus error"
	case "FPE":
		return "floating point exception"
	case "ILL":
		return "illegal instruction"
	case "PIPE":
		return "broken pipe"
	case "ALRM":
		return "alarm clock"
	case "TRAP":
		return "trace/breakpoint trap"
	case "USR1":
		return "user defined signal 1"
	case "USR2":
		return "user defined signal 2"
	}
	return name
}
