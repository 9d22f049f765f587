package envd

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"math"
	"strings"
	"time"

	"connectrpc.com/connect"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/envdpb"
)

// killWait is how long the answer to SIGKILL waits for the end of the process, in milliseconds.
const killWait = 1000

// processService is E2B's service process.Process over core's managed processes.
type processService struct{ s *Server }

// List implements the service.
func (p *processService) List(ctx context.Context, _ *connect.Request[envdpb.ListRequest]) (*connect.Response[envdpb.ListResponse], error) {
	sb := requestOf(ctx).sb
	all, err := p.s.core.Processes(ctx, sb.Caller, sb.Ref)
	if err != nil {
		return nil, rpcError(err)
	}
	out := &envdpb.ListResponse{}
	for i := range all {
		if rec := &all[i]; ours(rec) && rec.Running && rec.PID > 0 {
			e := p.s.processes.known(sb.Ref, rec)
			info := &envdpb.ProcessInfo{Config: e.config, Pid: e.pid}
			if e.tag != "" {
				info.Tag = &e.tag
			}
			out.Processes = append(out.Processes, info)
		}
	}
	return connect.NewResponse(out), nil
}

// Start implements the service. The process outlives the call, except if the call has a timeout:
// then it ends with that.
func (p *processService) Start(ctx context.Context, req *connect.Request[envdpb.StartRequest], out *connect.ServerStream[envdpb.StartResponse]) error {
	who, err := p.s.rpcActor(ctx, req.Header())
	if err != nil {
		return err
	}
	spec, err := who.spec(ctx, req.Msg)
	if err != nil {
		return err
	}
	rec, err := p.s.start(ctx, who, spec, req.Msg.GetProcess())
	if err != nil {
		return err
	}
	e := p.s.processes.add(who.sb.Ref, rec, req.Msg)
	return p.s.follow(ctx, who.sb, e, new(int64(0)), keepAlive(req.Header()), func(ev *envdpb.ProcessEvent) error {
		return out.Send(&envdpb.StartResponse{Event: ev})
	})
}

// spec is what core is asked to start.
func (a *actor) spec(ctx context.Context, m *envdpb.StartRequest) (api.ProcessSpec, error) {
	var spec api.ProcessSpec
	c := m.GetProcess()
	if c.GetCmd() == "" {
		return spec, connect.NewError(connect.CodeInvalidArgument, errors.New("process.cmd is empty"))
	}
	spec.ExecID = api.NewID(idPrefix)
	spec.Name = m.GetTag()
	spec.Argv = append([]string{c.GetCmd()}, c.GetArgs()...)
	spec.Env = maps.Clone(nonNil(a.sb.Env))
	if a.access.User != "" {
		// The environment of the sandbox has these of its own user.
		spec.Env["HOME"], spec.Env["USER"], spec.Env["LOGNAME"] = a.home, a.name, a.name
	}
	maps.Copy(spec.Env, c.GetEnvs())
	spec.User = a.access.User
	spec.OnFull = api.OnFullBlock
	spec.OpenStdin = m.Stdin == nil || m.GetStdin()
	cwd, err := a.resolve(c.GetCwd())
	if err != nil {
		return spec, err
	}
	spec.Cwd = cwd
	if m.Pty != nil {
		size := m.GetPty().GetSize()
		spec.TTY, spec.Rows, spec.Cols = true, cells(size.GetRows(), 24), cells(size.GetCols(), 80)
	}
	if until, ok := ctx.Deadline(); ok {
		spec.TimeoutMS = new(max(time.Until(until).Milliseconds(), 1))
	}
	return spec, nil
}

func cells(n uint32, usual uint16) uint16 {
	if n == 0 {
		return usual
	}
	return uint16(min(n, math.MaxUint16))
}

// viaShell executes its arguments. A program that does not exist then ends with status 127 and a
// message, as E2B's clients expect, instead of a refusal to start it.
const viaShell = `exec "$0" "$@"`

// start starts a process.
func (s *Server) start(ctx context.Context, who *actor, spec api.ProcessSpec, c *envdpb.ProcessConfig) (api.Process, error) {
	rec, err := s.core.StartProcess(ctx, who.sb.Caller, who.sb.Ref, spec)
	if c.GetCwd() == "" && wrongField(err, "cwd") {
		// The default directory does not exist: the sandbox's own one is the next best.
		spec.Cwd, spec.ExecID = "", api.NewID(idPrefix)
		rec, err = s.core.StartProcess(ctx, who.sb.Caller, who.sb.Ref, spec)
	}
	if code := api.CodeOf(err); err != nil && (code == api.CodeCommandNotFound || code == api.CodeNotExecutable) {
		refused := err
		spec.Argv, spec.ExecID = append([]string{"/bin/sh", "-c", viaShell}, spec.Argv...), api.NewID(idPrefix)
		if rec, err = s.core.StartProcess(ctx, who.sb.Caller, who.sb.Ref, spec); err != nil {
			err = refused
		}
	}
	switch {
	case err == nil:
		return rec, nil
	case wrongField(err, "cwd"):
		return rec, connect.NewError(connect.CodeInvalidArgument, fmt.Errorf("cwd '%s' does not exist", spec.Cwd))
	case wrongField(err, "user"):
		return rec, connect.NewError(connect.CodeUnauthenticated, fmt.Errorf("invalid username: '%.256s'", who.name))
	}
	return rec, rpcError(err)
}

func wrongField(err error, field string) bool {
	ae, ok := errors.AsType[*api.Error](err)
	return ok && ae.Code == api.CodeInvalid && ae.Field == field
}

// Connect implements the service. It tells the output from now on.
func (p *processService) Connect(ctx context.Context, req *connect.Request[envdpb.ConnectRequest], out *connect.ServerStream[envdpb.ConnectResponse]) error {
	e, err := p.find(ctx, req.Msg.GetProcess(), true)
	if err != nil {
		return err
	}
	return p.s.follow(ctx, requestOf(ctx).sb, e, nil, keepAlive(req.Header()), func(ev *envdpb.ProcessEvent) error {
		return out.Send(&envdpb.ConnectResponse{Event: ev})
	})
}

// Update implements the service: it changes the size of a terminal.
func (p *processService) Update(ctx context.Context, req *connect.Request[envdpb.UpdateRequest]) (*connect.Response[envdpb.UpdateResponse], error) {
	e, err := p.find(ctx, req.Msg.GetProcess(), false)
	if err != nil {
		return nil, err
	}
	if req.Msg.Pty != nil {
		if !e.pty {
			return nil, connect.NewError(connect.CodeInternal, errors.New("the process has no terminal"))
		}
		size, sb := req.Msg.GetPty().GetSize(), requestOf(ctx).sb
		err := p.s.core.ResizeProcess(ctx, sb.Caller, sb.Ref, e.id, api.Size{Rows: cells(size.GetRows(), 24), Cols: cells(size.GetCols(), 80)})
		if err != nil {
			return nil, rpcError(err)
		}
	}
	return connect.NewResponse(&envdpb.UpdateResponse{}), nil
}

// SendInput implements the service.
func (p *processService) SendInput(ctx context.Context, req *connect.Request[envdpb.SendInputRequest]) (*connect.Response[envdpb.SendInputResponse], error) {
	e, err := p.find(ctx, req.Msg.GetProcess(), false)
	if err != nil {
		return nil, err
	}
	if err := p.input(ctx, e, req.Msg.GetInput()); err != nil {
		return nil, err
	}
	return connect.NewResponse(&envdpb.SendInputResponse{}), nil
}

// StreamInput implements the service: the first message names the process, the others have input.
func (p *processService) StreamInput(ctx context.Context, in *connect.ClientStream[envdpb.StreamInputRequest]) (*connect.Response[envdpb.StreamInputResponse], error) {
	var e *process
	for in.Receive() {
		m := in.Msg()
		switch {
		case m.GetStart() != nil:
			var err error
			if e, err = p.find(ctx, m.GetStart().GetProcess(), false); err != nil {
				return nil, err
			}
		case m.GetKeepalive() != nil:
		case e == nil:
			return nil, connect.NewError(connect.CodeInvalidArgument, errors.New("the first message does not name a process"))
		default:
			if err := p.input(ctx, e, m.GetData().GetInput()); err != nil {
				return nil, err
			}
		}
	}
	if err := in.Err(); err != nil && !errors.Is(err, io.EOF) {
		return nil, rpcError(err)
	}
	return connect.NewResponse(&envdpb.StreamInputResponse{}), nil
}

// input writes to the input of a process.
func (p *processService) input(ctx context.Context, e *process, in *envdpb.ProcessInput) error {
	var data []byte
	switch kind := in.GetInput().(type) {
	case *envdpb.ProcessInput_Stdin:
		if e.pty {
			return connect.NewError(connect.CodeInternal, errors.New("the process has a terminal: its input is pty, not stdin"))
		}
		data = kind.Stdin
	case *envdpb.ProcessInput_Pty:
		if !e.pty {
			return connect.NewError(connect.CodeInternal, errors.New("the process has no terminal"))
		}
		data = kind.Pty
	default:
		return connect.NewError(connect.CodeUnimplemented, errors.New("the input is neither stdin nor pty"))
	}
	sb := requestOf(ctx).sb
	_, err := p.s.core.WriteStdin(ctx, sb.Caller, sb.Ref, e.id, nil, bytes.NewReader(data), false)
	if api.CodeOf(err) == api.CodeState {
		return connect.NewError(connect.CodeInternal, errors.New("error writing to stdin: stdin not enabled or closed"))
	}
	if err != nil {
		return rpcError(err)
	}
	return nil
}

// SendSignal implements the service. Only the process itself gets the signal.
func (p *processService) SendSignal(ctx context.Context, req *connect.Request[envdpb.SendSignalRequest]) (*connect.Response[envdpb.SendSignalResponse], error) {
	var name string
	switch req.Msg.GetSignal() {
	case envdpb.Signal_SIGNAL_SIGTERM:
		name = "TERM"
	case envdpb.Signal_SIGNAL_SIGKILL:
		name = "KILL"
	case envdpb.Signal_SIGNAL_UNSPECIFIED:
		fallthrough
	default:
		return nil, connect.NewError(connect.CodeUnimplemented, errors.New("only SIGNAL_SIGTERM and SIGNAL_SIGKILL can be sent"))
	}
	e, err := p.find(ctx, req.Msg.GetProcess(), false)
	if err != nil {
		return nil, err
	}
	sb := requestOf(ctx).sb
	err = p.s.core.SignalProcess(ctx, sb.Caller, sb.Ref, e.id, api.SignalRequest{Signal: name, Scope: api.ScopeProcess})
	switch api.CodeOf(err) {
	case api.CodeState, api.CodeNotFound:
		if err != nil {
			return nil, notFound(req.Msg.GetProcess())
		}
	}
	if err != nil {
		return nil, rpcError(err)
	}
	if name == "KILL" {
		// A client that asks again is told that the process has ended. A failure is the next call's to tell.
		_, _ = p.s.core.WaitProcess(ctx, sb.Caller, sb.Ref, e.id, api.WaitRequest{TimeoutMS: killWait})
	}
	return connect.NewResponse(&envdpb.SendSignalResponse{}), nil
}

// CloseStdin implements the service.
func (p *processService) CloseStdin(ctx context.Context, req *connect.Request[envdpb.CloseStdinRequest]) (*connect.Response[envdpb.CloseStdinResponse], error) {
	e, err := p.find(ctx, req.Msg.GetProcess(), false)
	if err != nil {
		return nil, err
	}
	if e.pty {
		return nil, connect.NewError(connect.CodeUnknown, errors.New("the input of a terminal cannot be closed: send Ctrl-D (0x04) instead"))
	}
	sb := requestOf(ctx).sb
	_, err = p.s.core.WriteStdin(ctx, sb.Caller, sb.Ref, e.id, nil, strings.NewReader(""), true)
	if err != nil && api.CodeOf(err) != api.CodeState { // it is closed already
		return nil, rpcError(err)
	}
	return connect.NewResponse(&envdpb.CloseStdinResponse{}), nil
}

// find finds a process of E2B's clients: a running one, or also one that has just ended.
func (p *processService) find(ctx context.Context, sel *envdpb.ProcessSelector, ended bool) (*process, error) {
	sb := requestOf(ctx).sb
	e, err := p.s.processes.find(ctx, p.s.core, sb, sel, ended)
	if err != nil {
		return nil, rpcError(err)
	}
	if e == nil {
		return nil, notFound(sel)
	}
	return e, nil
}

func notFound(sel *envdpb.ProcessSelector) *connect.Error {
	if tag, ok := sel.GetSelector().(*envdpb.ProcessSelector_Tag); ok {
		return connect.NewError(connect.CodeNotFound, fmt.Errorf("process with tag %.200s not found", tag.Tag))
	}
	return connect.NewError(connect.CodeNotFound, fmt.Errorf("process with pid %d not found", sel.GetPid()))
}
