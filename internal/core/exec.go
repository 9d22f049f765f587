package core

import (
	"context"
	"sync"

	"github.com/cloche-dev/cloche"
	"github.com/cloche-dev/cloche/internal/policy"
	"github.com/cloche-dev/cloche/internal/sandbox"
)

// permitExec decides one exec in a sandbox that exists.
func (s *Service) permitExec(caller Caller, ref string, req cloche.ExecRequest) (cloche.Sandbox, policy.ExecPermit, error) {
	sb, err := s.opts.Sandboxes.Get(caller, ref)
	if err != nil {
		return sb, policy.ExecPermit{}, err
	}
	permit, err := policy.DecideExec(req, policy.SettingsOf(sb), caller, s.opts.Rules)
	return sb, permit, err
}

// Exec runs one program to its end.
func (s *Service) Exec(ctx context.Context, caller Caller, ref string, req cloche.ExecRequest) (cloche.Result, error) {
	d := s.execDetails(req)
	sb, permit, err := s.permitExec(caller, ref, req)
	if err != nil {
		return cloche.Result{}, s.refused(ctx, caller, policy.VerbExec, sb.ID, d, err)
	}
	if err := s.intend(ctx, caller, policy.VerbExec, sb.ID, d); err != nil {
		return cloche.Result{}, err
	}
	res, err := s.opts.Sandboxes.Exec(ctx, caller, sb.ID, permit)
	return res, s.done(ctx, caller, policy.VerbExec, sb.ID, resultDetails(res, d), err)
}

// ExecStream starts one program and returns when it has been executed. Closing
// the Stream leaves it running.
func (s *Service) ExecStream(ctx context.Context, caller Caller, ref string, req cloche.ExecRequest) (*Stream, error) {
	d := s.execDetails(req)
	sb, permit, err := s.permitExec(caller, ref, req)
	if err != nil {
		return nil, s.refused(ctx, caller, policy.VerbExec, sb.ID, d, err)
	}
	return s.stream(ctx, caller, sb.ID, permit, d)
}

func (s *Service) stream(ctx context.Context, caller Caller, id string, permit policy.ExecPermit, d details) (*Stream, error) {
	if err := s.intend(ctx, caller, policy.VerbExec, id, d); err != nil {
		return nil, err
	}
	inner, err := s.opts.Sandboxes.ExecStream(ctx, caller, id, permit)
	if err != nil {
		return nil, s.done(ctx, caller, policy.VerbExec, id, d, err)
	}
	return &Stream{Stream: inner, ended: func(res cloche.Result) error {
		return s.done(context.WithoutCancel(ctx), caller, policy.VerbExec, id, resultDetails(res, d), nil)
	}}, nil
}

// Stream is a live exec whose end is on record. See sandbox.Stream.
type Stream struct {
	*sandbox.Stream
	ended   func(cloche.Result) error
	onClose func()
	closing sync.Once
}

// Recv returns the next output or, last, the exit; after that io.EOF.
func (t *Stream) Recv() (Event, error) {
	ev, err := t.Stream.Recv()
	if err == nil && ev.Exit != nil {
		err = t.ended(*ev.Exit)
	}
	return ev, err
}

// Close ends the Stream; the sandbox of a one-shot is removed before it returns.
func (t *Stream) Close() error {
	err := t.Stream.Close()
	t.closing.Do(func() {
		if t.onClose != nil {
			t.onClose()
		}
	})
	return err
}
