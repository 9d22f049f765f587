//go:build linux

package guest

import (
	"errors"
	"time"

	"github.com/hashicorp/yamux"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/agent/guest/process"
	"github.com/cloche-dev/cloche/internal/agent/guest/session"
	"github.com/cloche-dev/cloche/internal/agent/wire"
)

// requestTime bounds the wait for a stream's first frame.
const requestTime = time.Minute

// answer serves one stream.
func (a *Agent) answer(stream *yamux.Stream, in *session.Session) {
	defer stream.Close()
	p := in.Call(stream)
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
		e = api.Errorf(api.CodeInternal, "serve %s: %w", req.Op, err)
	}
	_ = p.JSON(wire.KindFail, e)
}

// do carries out a request. An error it returns is sent.
func (a *Agent) do(p *session.Call, req *wire.Request) error {
	if req.Op.Since() > p.Session.Version {
		return errUnknown(req.Op)
	}
	switch req.Op {
	case wire.OpExec, wire.OpStream, wire.OpStart:
		if req.Exec == nil {
			return api.Invalid("exec", "the request names no program")
		}
		switch req.Op {
		case wire.OpExec:
			return a.procs.Exec(p, req.Exec)
		case wire.OpStream:
			return a.procs.StreamExec(p, req.Exec)
		}
		return a.procs.StartManaged(p, req)
	case wire.OpProcesses:
		return p.JSON(wire.KindReply, a.procs.Records())
	case wire.OpLogs:
		if req.Logs == nil {
			req.Logs = &wire.Logs{}
		}
		return a.procs.Logs(p, req.Logs)
	case wire.OpSignal:
		return p.Done(a.procs.Signal(req.ExecID, req.Signal, req.Scope, req.Forestall))
	case wire.OpTerminate:
		a.procs.Terminate(time.Duration(min(max(req.GraceMS, 0), maxGrace.Milliseconds())) * time.Millisecond)
		return p.Done(nil)
	case wire.OpWatch:
		return a.procs.Watch(p)
	case wire.OpFollow:
		return a.procs.Follow(p, req)
	case wire.OpStdin:
		return a.procs.Stdin(p, req)
	case wire.OpCloseStdin:
		return a.procs.CloseStdin(p, req)
	case wire.OpResize:
		return p.Done(a.procs.Resize(req.ExecID, req.Size))
	case wire.OpForget:
		return p.Done(a.procs.Forget(p, req))
	case wire.OpDial:
		return a.listeners.Dial(p, req.Port)
	case wire.OpHold:
		a.procs.Hold(req.Hold)
		return p.Done(nil)
	case wire.OpSuspend:
		return a.hangUp(p, req.Reattach != nil)
	case wire.OpReattach:
		return a.procs.Reattach(p, req)
	case wire.OpRenew:
		return a.renew(p, req.Renew)
	case wire.OpListen:
		return a.listeners.Listen(p, req.Listen)
	case wire.OpUnlisten:
		return p.Done(a.listeners.Unlisten(req.Listen))
	case wire.OpTool:
		return a.tools.Do(p, req)
	case wire.OpUsage:
		u, err := process.Usage()
		if err != nil {
			return err
		}
		return p.JSON(wire.KindReply, u)
	case wire.OpRestrict:
		return p.Done(a.rules.Apply(req.Rules))
	default:
		return a.files.Do(p, req)
	}
}

func errUnknown(op wire.Op) error {
	return api.Invalid("op", "operation %.40q does not exist", string(op))
}

// maxGrace bounds what a terminate may wait.
const maxGrace = time.Hour
