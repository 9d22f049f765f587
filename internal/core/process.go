package core

import (
	"context"
	"io"
	"net"
	"strconv"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/policy"
	"github.com/cloche-dev/cloche/internal/sandbox/process"
)

// AttachEvent is one event of an attach.
type AttachEvent = process.AttachEvent

// StartProcess starts a managed process.
func (s *Service) StartProcess(ctx context.Context, caller Caller, ref string, spec api.ProcessSpec) (_ api.Process, err error) {
	var sb api.Sandbox
	stage := api.StageExecution
	defer func() { _ = s.remember(ctx, caller, stage, sb.ID, spec.Naming, err) }()
	d := s.processDetails(spec)
	d["ref"] = ref
	rules := s.rules()
	if sb, err = s.target(caller, ref, spec.Naming, rules); err != nil {
		return api.Process{}, s.refused(ctx, caller, policy.VerbStart, "", d, err)
	}
	permit, err := policy.DecideProcess(spec, policy.SettingsOf(sb), caller, rules)
	if err != nil {
		return api.Process{}, s.refused(ctx, caller, policy.VerbStart, sb.ID, d, err)
	}
	if err := s.intend(ctx, caller, policy.VerbStart, sb.ID, d); err != nil {
		return api.Process{}, err
	}
	if err := s.beforeRun(ctx, caller, sb); err != nil {
		stage = api.StageQuotaBefore
		return api.Process{}, s.done(ctx, caller, policy.VerbStart, sb.ID, d, err)
	}
	p, err := s.opts.Sandboxes.StartProcess(ctx, caller, sb.ID, permit)
	if err == nil {
		d["exec_id"] = p.ExecID
	}
	return p, s.done(ctx, caller, policy.VerbStart, sb.ID, d, err)
}

func (s *Service) processDetails(spec api.ProcessSpec) details {
	d := s.execDetails(spec.ExecRequest)
	if spec.Restart != nil {
		d["restart"] = string(spec.Restart.Policy)
	}
	return d
}

// Processes lists the processes of a sandbox that are on record.
func (s *Service) Processes(ctx context.Context, caller Caller, ref string) ([]api.Process, error) {
	return s.opts.Sandboxes.Processes(ctx, caller, ref)
}

// GetProcess returns the record of one process.
func (s *Service) GetProcess(ctx context.Context, caller Caller, ref, id string) (api.Process, error) {
	return s.opts.Sandboxes.Process(ctx, caller, ref, id)
}

// WaitProcess waits until a process has ended or is ready.
func (s *Service) WaitProcess(ctx context.Context, caller Caller, ref, id string, w api.WaitRequest) (api.Process, error) {
	if w.TimeoutMS < 0 {
		return api.Process{}, api.Invalid("timeout_ms", "a wait of %d ms was asked for", w.TimeoutMS).
			WithHint("0 is as long as the server lets a request wait")
	}
	return s.opts.Sandboxes.WaitProcess(ctx, caller, ref, id, w)
}

// SignalProcess sends a signal.
func (s *Service) SignalProcess(ctx context.Context, caller Caller, ref, id string, r api.SignalRequest) error {
	if api.SignalNumber(r.Signal) == 0 {
		return api.Invalid("signal", "%.40q is no signal", r.Signal).WithHint("name one like TERM, INT or KILL")
	}
	switch r.Scope {
	case "", api.ScopeTree, api.ScopeGroup, api.ScopeProcess:
	default:
		return api.Invalid("scope", "there is no scope %.40q", string(r.Scope)).WithHint("tree, group or process")
	}
	d := details{"exec_id": id, "signal": r.Signal, "scope": string(r.Scope)}
	return s.process(ctx, caller, policy.VerbSignal, ref, d, func(sandboxID string) error {
		return s.opts.Sandboxes.SignalProcess(ctx, caller, sandboxID, id, r)
	})
}

// RemoveProcess removes one process, running or not, with its log.
func (s *Service) RemoveProcess(ctx context.Context, caller Caller, ref, id string) error {
	return s.process(ctx, caller, policy.VerbRemoveProcess, ref, details{"exec_id": id}, func(sandboxID string) error {
		return s.opts.Sandboxes.RemoveProcess(ctx, caller, sandboxID, id)
	})
}

// process runs one operation that may end a process, and records it afterwards: an audit log that
// cannot be written never delays an end.
func (s *Service) process(ctx context.Context, caller Caller, verb policy.Verb, ref string, d details, do func(sandboxID string) error) error {
	sb, err := s.opts.Sandboxes.Get(caller, ref)
	if err != nil {
		return s.refused(ctx, caller, verb, "", d, err)
	}
	return s.done(ctx, caller, verb, sb.ID, d, do(sb.ID))
}

// ResizeProcess changes the size of a process's terminal.
func (s *Service) ResizeProcess(ctx context.Context, caller Caller, ref, id string, size api.Size) error {
	return s.opts.Sandboxes.ResizeProcess(ctx, caller, ref, id, size)
}

// WriteStdin writes input to a process, and closes it if end is set. A nil offset appends.
func (s *Service) WriteStdin(ctx context.Context, caller Caller, ref, id string, offset *int64, r io.Reader, end bool) (api.StdinAck, error) {
	if offset != nil && *offset < 0 {
		return api.StdinAck{}, api.Invalid("offset", "an offset of %d was given", *offset).WithHint("count the bytes since the process's start")
	}
	return s.opts.Sandboxes.WriteStdin(ctx, caller, ref, id, offset, r, end)
}

// Attach attaches to a process. The Attachment neither blocks nor ends the process.
func (s *Service) Attach(ctx context.Context, caller Caller, ref, id string, r api.AttachRequest) (*process.Attachment, error) {
	d := details{"exec_id": id, "write": strconv.FormatBool(r.Write || r.Exclusive), "exclusive": strconv.FormatBool(r.Exclusive)}
	sb, err := s.opts.Sandboxes.Get(caller, ref)
	if err != nil {
		return nil, s.refused(ctx, caller, policy.VerbAttach, "", d, err)
	}
	var a *process.Attachment
	err = s.recorded(ctx, caller, policy.VerbAttach, sb.ID, d, func() (err error) {
		a, err = s.opts.Sandboxes.Attach(ctx, caller, sb.ID, id, r)
		return err
	})
	return a, err
}

// DialPort opens a stream to a port inside the sandbox.
func (s *Service) DialPort(ctx context.Context, caller Caller, ref string, port int) (net.Conn, error) {
	if port < 1 || port > 65535 {
		return nil, api.Invalid("port", "%d is no port", port).WithHint("1 to 65535")
	}
	d := details{"port": strconv.Itoa(port)}
	sb, err := s.opts.Sandboxes.Get(caller, ref)
	if err != nil {
		return nil, s.refused(ctx, caller, policy.VerbPort, "", d, err)
	}
	var conn net.Conn
	err = s.recorded(ctx, caller, policy.VerbPort, sb.ID, d, func() (err error) {
		conn, err = s.opts.Sandboxes.DialPort(ctx, caller, sb.ID, port)
		return err
	})
	return conn, err
}
