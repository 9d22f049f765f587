//go:build linux

package guest

import (
	"context"
	"errors"
	"io"
	"time"

	"github.com/hashicorp/yamux"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/agent/wire"
)

// requestTime bounds the wait for a stream's first frame.
const requestTime = time.Minute

// peer is one stream: a request, and what is said about it.
type peer struct {
	*wire.Reader
	*wire.Writer
	stream  *yamux.Stream
	session *session
}

// answer serves one stream.
func (a *Agent) answer(stream *yamux.Stream, in *session) {
	defer stream.Close()
	p := &peer{wire.NewReader(stream), wire.NewWriter(stream), stream, in}
	_ = stream.SetReadDeadline(time.Now().Add(requestTime))
	kind, payload, err := p.Next()
	if err != nil {
		return
	}
	_ = stream.SetReadDeadline(time.Time{})
	var req wire.Request
	if kind != wire.KindRequest {
		err = api.Errorf(api.CodeInvalid, "a stream begins with a request, not with kind %q", byte(kind))
	} else if req, err = wire.Decode[wire.Request](payload); err != nil {
		err = api.Errorf(api.CodeInvalid, "the request cannot be read: %w", err)
	} else {
		err = a.do(p, &req)
	}
	if err == nil {
		return
	}
	e, ok := errors.AsType[*api.Error](err)
	if !ok {
		e = internal("serve "+string(req.Op), err)
	}
	_ = p.JSON(wire.KindFail, e)
}

// do carries out a request. An error it returns is sent.
func (a *Agent) do(p *peer, req *wire.Request) error {
	if req.Op.Since() > p.session.version {
		return errUnknown(req.Op)
	}
	switch req.Op {
	case wire.OpExec, wire.OpStream, wire.OpStart:
		if req.Exec == nil {
			return api.Invalid("exec", "the request names no program")
		}
		switch req.Op {
		case wire.OpExec:
			return a.exec(p, req.Exec)
		case wire.OpStream:
			return a.streamExec(p, req.Exec)
		}
		return a.start(p, req)
	case wire.OpProcesses:
		return p.JSON(wire.KindReply, a.procs.records())
	case wire.OpLogs:
		if req.Logs == nil {
			req.Logs = &wire.Logs{}
		}
		return a.logs(p, req.Logs)
	case wire.OpSignal:
		return done(p, a.procs.signal(req.ExecID, req.Signal, req.Scope, req.Forestall))
	case wire.OpTerminate:
		a.procs.terminate(time.Duration(min(max(req.GraceMS, 0), maxGrace.Milliseconds())) * time.Millisecond)
		return done(p, nil)
	case wire.OpWatch:
		return a.watch(p)
	case wire.OpFollow:
		return a.follow(p, req)
	case wire.OpStdin:
		return a.stdin(p, req)
	case wire.OpCloseStdin:
		return a.closeStdin(p, req)
	case wire.OpResize:
		return done(p, a.procs.resize(req.ExecID, req.Size))
	case wire.OpForget:
		var err error
		if req.Ended {
			err = a.procs.forgetEnded(req.ExecID)
		} else {
			err = a.procs.remove(a.attend(p, nil), req.ExecID)
		}
		if err == nil {
			a.repeats.forget(req.ExecID)
		}
		return done(p, err)
	case wire.OpDial:
		return a.dial(p, req.Port)
	case wire.OpHold:
		a.procs.clock.hold(req.Hold)
		return done(p, nil)
	case wire.OpListen:
		return a.listen(p, req.Listen)
	case wire.OpUnlisten:
		return done(p, a.unlisten(req.Listen))
	case wire.OpTool:
		return a.doTool(p, req)
	case wire.OpUsage:
		u, err := usage()
		if err != nil {
			return err
		}
		return p.JSON(wire.KindReply, u)
	case wire.OpRestrict:
		return done(p, a.restrict(req.Rules))
	default:
		return a.doFile(p, req)
	}
}

func errUnknown(op wire.Op) error {
	return api.Invalid("op", "operation %.40q does not exist", string(op))
}

// maxGrace bounds what a terminate may wait.
const maxGrace = time.Hour

// done answers a request that has nothing to tell.
func done(p *peer, err error) error {
	if err != nil {
		return err
	}
	return p.JSON(wire.KindReply, wire.Empty{})
}

// exec runs a program and answers with everything at once.
func (a *Agent) exec(p *peer, x *wire.Exec) error {
	if x.TTY {
		return api.Invalid("tty", "a collected exec has no terminal").WithHint("stream it")
	}
	if x.Key != "" && p.session.version >= 2 {
		return a.repeatable(p, x)
	}
	x.Key = ""
	proc, err := a.procs.start(x, nil)
	if err != nil {
		return err
	}
	a.feedInput(p, proc, x.Input, -1)
	<-proc.done
	res := proc.result()
	proc.forgetCollected()
	return sendResult(p, res)
}

// feedInput gives an exec the input that follows its request, if any does. at is
// the offset of its first byte, -1 for wherever the input ends.
func (a *Agent) feedInput(p *peer, proc *process, follows bool, at int64) {
	if follows {
		// It ends with the stream, which answer closes, or with the program.
		a.wg.Go(func() { a.control(p, proc, at) })
	} else {
		_, _ = proc.input.close(context.Background())
	}
}

// sendResult sends a result with its output.
func sendResult(p *peer, res api.Result) error {
	stdout, stderr := res.Stdout, res.Stderr
	res.Stdout, res.Stderr = nil, nil
	if err := p.Bytes(wire.KindStdout, stdout); err != nil {
		return err
	}
	if err := p.Bytes(wire.KindStderr, stderr); err != nil {
		return err
	}
	return p.JSON(wire.KindExit, res)
}

// streamExec runs a program with the caller attached.
func (a *Agent) streamExec(p *peer, x *wire.Exec) error {
	started := make(chan struct{})
	proc, err := a.procs.start(x, wire.NewWriter(&gated{w: p.stream, open: started}))
	if err != nil {
		return err
	}
	err = p.JSON(wire.KindStarted, api.Started{ExecID: x.ID})
	close(started)
	if err != nil {
		proc.sink.detach()
		return err
	}
	a.wg.Go(func() {
		a.control(p, proc, -1)
		_, _ = proc.input.close(context.Background())
	})
	<-proc.done
	proc.sink.detach()
	return p.JSON(wire.KindExit, proc.result())
}

// gated is a stream on which nothing is written before open.
type gated struct {
	w    io.Writer
	open <-chan struct{}
}

func (g *gated) Write(b []byte) (int, error) {
	<-g.open
	return g.w.Write(b)
}

// control carries out what the caller sends during an exec, until it goes. at is
// the offset of the first byte of its input, -1 for wherever the input ends.
func (a *Agent) control(p *peer, proc *process, at int64) {
	ctx := context.Background() // input ends with the process at the latest
	for {
		kind, payload, err := p.Next()
		if err != nil {
			break
		}
		switch kind {
		case wire.KindInput:
			// A program that has closed its input, or ended, wants no more.
			_, _ = proc.input.write(ctx, at, payload)
			if at >= 0 {
				at += int64(len(payload))
			}
		case wire.KindEnd:
			_, _ = proc.input.close(ctx)
		case wire.KindSignal:
			if s, err := wire.Decode[wire.Signal](payload); err == nil {
				_ = a.procs.signalRun(proc.present(), s.Number)
			}
		case wire.KindResize:
			if s, err := wire.Decode[api.Size](payload); err == nil {
				if tty := proc.present().tty; tty != nil {
					_ = resize(tty, s.Rows, s.Cols)
				}
			}
		default:
			p.stream.Close()
			return
		}
	}
	// The caller is gone. Output that waits for it must not.
	_ = p.stream.SetWriteDeadline(time.Unix(1, 0))
	proc.sink.detach()
}
