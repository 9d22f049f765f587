//go:build linux

package guest

import (
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/hashicorp/yamux"

	"github.com/cloche-dev/cloche"
	"github.com/cloche-dev/cloche/internal/agent/wire"
)

// requestTime bounds the wait for a stream's first frame.
const requestTime = time.Minute

// peer is one stream: a request, and what is said about it.
type peer struct {
	*wire.Reader
	*wire.Writer
	stream *yamux.Stream
}

// answer serves one stream.
func (a *Agent) answer(stream *yamux.Stream) {
	defer stream.Close()
	p := &peer{wire.NewReader(stream), wire.NewWriter(stream), stream}
	_ = stream.SetReadDeadline(time.Now().Add(requestTime))
	kind, payload, err := p.Next()
	if err != nil {
		return
	}
	_ = stream.SetReadDeadline(time.Time{})
	var req wire.Request
	if kind != wire.KindRequest {
		err = cloche.Errorf(cloche.CodeInvalid, "a stream begins with a request, not with kind %q", byte(kind))
	} else if req, err = wire.Decode[wire.Request](payload); err != nil {
		err = cloche.Errorf(cloche.CodeInvalid, "the request cannot be read: %w", err)
	} else {
		err = a.do(p, &req)
	}
	if err == nil {
		return
	}
	e, ok := errors.AsType[*cloche.Error](err)
	if !ok {
		e = internal("serve "+string(req.Op), err)
	}
	_ = p.JSON(wire.KindFail, e)
}

// do carries out a request. An error it returns is sent.
func (a *Agent) do(p *peer, req *wire.Request) error {
	switch req.Op {
	case wire.OpExec, wire.OpStream:
		if req.Exec == nil {
			return cloche.Invalid("exec", "the request names no program")
		}
		if req.Op == wire.OpExec {
			return a.exec(p, req.Exec)
		}
		return a.streamExec(p, req.Exec)
	case wire.OpProcesses:
		return p.JSON(wire.KindReply, a.procs.list())
	case wire.OpLogs:
		if req.Logs == nil {
			req.Logs = &wire.Logs{}
		}
		return a.logs(p, req.Logs)
	case wire.OpSignal:
		return done(p, a.procs.signal(req.ExecID, req.Signal))
	case wire.OpTerminate:
		a.procs.terminate(time.Duration(min(max(req.GraceMS, 0), maxGrace.Milliseconds())) * time.Millisecond)
		return done(p, nil)
	default:
		return a.doFile(p, req)
	}
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
		return cloche.Invalid("tty", "a collected exec has no terminal").WithHint("stream it")
	}
	proc, err := a.procs.start(x, nil)
	if err != nil {
		return err
	}
	if x.Input {
		// It ends with the stream, which answer closes, or with the program.
		a.wg.Go(func() { a.control(p, proc) })
	} else {
		proc.closeInput()
	}
	<-proc.done
	res := proc.result()
	stdout, stderr := res.Stdout, res.Stderr
	res.Stdout, res.Stderr = nil, nil
	proc.forgetCollected()
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
	err = p.JSON(wire.KindStarted, cloche.Started{ExecID: x.ID})
	close(started)
	if err != nil {
		proc.sink.detach()
		return err
	}
	a.wg.Go(func() {
		a.control(p, proc)
		proc.closeInput()
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

// control carries out what the caller sends during an exec, until it goes.
func (a *Agent) control(p *peer, proc *process) {
	for {
		kind, payload, err := p.Next()
		if err != nil {
			break
		}
		switch kind {
		case wire.KindInput:
			// A program that has closed its input, or ended, wants no more.
			_ = proc.write(payload)
		case wire.KindEnd:
			proc.closeInput()
		case wire.KindSignal:
			if s, err := wire.Decode[wire.Signal](payload); err == nil {
				_ = a.procs.signalGroup(proc, s.Number)
			}
		case wire.KindResize:
			if s, err := wire.Decode[cloche.Size](payload); err == nil && proc.tty != nil {
				_ = resize(proc.tty, s.Rows, s.Cols)
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

// logs sends what the rings hold.
func (a *Agent) logs(p *peer, o *wire.Logs) error {
	procs, err := a.procs.chosen(o.ExecID)
	if err != nil {
		return err
	}
	if o.Stream != "" && o.Stream != cloche.Stdout && o.Stream != cloche.Stderr {
		return cloche.Invalid("stream", "stream %.20q has no log", string(o.Stream)).WithHint("stdout or stderr")
	}
	entries := logEntries(procs, o)
	for _, e := range entries {
		data := e.Data
		e.Data = nil
		if err := p.JSON(wire.KindLog, e); err != nil {
			return err
		}
		if e.Gap == 0 {
			if err := p.Bytes(wire.KindData, data); err != nil {
				return err
			}
		}
	}
	if err := p.End(); err != nil {
		return fmt.Errorf("end logs: %w", err)
	}
	return nil
}
