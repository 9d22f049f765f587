package core

import (
	"context"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/policy"
	"github.com/cloche-dev/cloche/internal/policy/rules"
	"github.com/cloche-dev/cloche/internal/sandbox/process"
)

// target returns the sandbox that a request is for, by its ref or by the identity of the request.
func (s *Service) target(caller Caller, ref string, asked api.Naming, rules rules.Rules) (api.Sandbox, error) {
	t, err := policy.DecideTarget(ref, asked, caller, rules)
	if err != nil {
		return api.Sandbox{}, err
	}
	sb, err := s.opts.Sandboxes.Get(caller, t.Ref())
	if err != nil {
		return api.Sandbox{}, t.Missing(err)
	}
	if err := t.Check(sb); err != nil {
		return api.Sandbox{}, err
	}
	return sb, nil
}

// permitExec decides one exec in an existing sandbox.
func (s *Service) permitExec(caller Caller, ref string, req api.ExecRequest) (api.Sandbox, policy.ExecPermit, error) {
	rules := s.rules()
	sb, err := s.target(caller, ref, req.Naming, rules)
	if err != nil {
		return sb, policy.ExecPermit{}, err
	}
	permit, err := policy.DecideExec(req, policy.SettingsOf(sb), caller, rules)
	return sb, permit, err
}

// Exec runs one program to its end.
func (s *Service) Exec(ctx context.Context, caller Caller, ref string, req api.ExecRequest) (api.Result, error) {
	d := s.execDetails(req)
	d["ref"] = ref
	sb, permit, err := s.permitExec(caller, ref, req)
	if err == nil {
		err = s.intend(ctx, caller, policy.VerbExec, sb.ID, d)
	} else {
		err = s.refused(ctx, caller, policy.VerbExec, sb.ID, d, err)
	}
	if err != nil {
		return api.Result{}, s.remember(ctx, caller, api.StageExecution, sb.ID, req.Naming, err)
	}
	res, err := s.measuredExec(ctx, caller, sb, permit, req.Naming)
	err = s.done(ctx, caller, policy.VerbExec, sb.ID, resultDetails(res, d), err)
	limitText(&res, req)
	return res, err
}

// ExecStream starts one program and returns when it has been executed. Closing the Stream leaves
// the program running.
func (s *Service) ExecStream(ctx context.Context, caller Caller, ref string, req api.ExecRequest) (*Stream, error) {
	d := s.execDetails(req)
	d["ref"] = ref
	sb, permit, err := s.permitExec(caller, ref, req)
	if err == nil {
		err = policy.NoOutputChars(req)
	}
	if err != nil {
		err = s.refused(ctx, caller, policy.VerbExec, sb.ID, d, err)
		return nil, s.remember(ctx, caller, api.StageExecution, sb.ID, req.Naming, err)
	}
	return s.stream(ctx, caller, sb, permit, req.Naming, d)
}

// stream starts a permitted exec. asked is the caller that it is for.
func (s *Service) stream(ctx context.Context, caller Caller, sb api.Sandbox, permit policy.ExecPermit, asked api.Naming, d details) (*Stream, error) {
	failed := func(stage api.ErrorStage, err error) error {
		return s.remember(ctx, caller, stage, sb.ID, asked, err)
	}
	if err := s.intend(ctx, caller, policy.VerbExec, sb.ID, d); err != nil {
		return nil, failed(api.StageExecution, err)
	}
	if err := s.beforeRun(ctx, caller, sb); err != nil {
		return nil, failed(api.StageQuotaBefore, s.done(ctx, caller, policy.VerbExec, sb.ID, d, err))
	}
	st, err := s.opts.Sandboxes.ExecStream(ctx, caller, sb.ID, permit)
	if err != nil {
		s.metrics.Ran(sb.Engine, api.Result{}, err)
		return nil, failed(api.StageExecution, s.done(ctx, caller, policy.VerbExec, sb.ID, d, err))
	}
	st.Exited = func(res api.Result) error {
		s.logExec(ctx, sb, permit, res, nil)
		s.metrics.Ran(sb.Engine, res, nil)
		err := failed(api.StageQuotaAfter, s.afterRun(ctx, caller, sb))
		return s.done(context.WithoutCancel(ctx), caller, policy.VerbExec, sb.ID, resultDetails(res, d), err)
	}
	return st, nil
}

// Stream is a running exec whose end is recorded before its caller sees the exit. The sandbox of a
// one-shot is removed by then, or when Close returns.
type Stream = process.Stream
