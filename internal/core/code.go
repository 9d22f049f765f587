package core

import (
	"context"
	"maps"
	"net"
	"time"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/kernel"
	"github.com/cloche-dev/cloche/internal/policy"
)

// runGrace is how much longer than its timeout a run of code can take: the time for the interrupt.
const runGrace = 30 * time.Second

// CreateContext creates a code context and returns when its kernel is ready. Its process is started and
// recorded as every process.
func (s *Service) CreateContext(ctx context.Context, caller Caller, ref string, spec api.CodeContextSpec) (api.CodeContext, error) {
	process, err := kernel.Process(spec)
	if err != nil {
		return api.CodeContext{}, err
	}
	p, err := s.StartProcess(ctx, caller, ref, process)
	if api.CodeOf(err) == api.CodeCommandNotFound {
		return api.CodeContext{}, api.Errorf(api.CodeUnsupported, "the image has no python3, which code contexts need").WithHint("use an image with Python and ipykernel").WithCause(err)
	}
	if err != nil {
		return api.CodeContext{}, err
	}
	out, _ := kernel.Context(p)
	if _, err := s.bridge(ctx, caller, ref, out); err != nil {
		if ctx.Err() != nil && spec.ID != "" {
			return api.CodeContext{}, err // other callers may wait for the context with this ID
		}
		if rerr := s.RemoveProcess(context.WithoutCancel(ctx), caller, ref, p.ExecID); rerr != nil && api.CodeOf(rerr) != api.CodeNotFound {
			s.log.Warn("remove the process of a code context that did not start", "sandbox", ref, "exec", p.ExecID, "error", rerr)
		}
		return api.CodeContext{}, err
	}
	return out, nil
}

// bridge waits until a context is ready, and returns where it listens.
func (s *Service) bridge(ctx context.Context, caller Caller, ref string, c api.CodeContext) (kernel.Bridge, error) {
	line, err := s.opts.Sandboxes.FirstLine(ctx, caller, ref, c.ExecID)
	if err != nil {
		return kernel.Bridge{}, err
	}
	return kernel.Parse(line, c.Language)
}

// Contexts lists the code contexts of a sandbox.
func (s *Service) Contexts(ctx context.Context, caller Caller, ref string) (api.CodeContextList, error) {
	list := api.CodeContextList{Contexts: []api.CodeContext{}}
	all, err := s.Processes(ctx, caller, ref)
	for _, p := range all {
		if c, ok := kernel.Context(p); ok {
			list.Contexts = append(list.Contexts, c)
		}
	}
	return list, err
}

// context returns one context that has not ended.
func (s *Service) context(ctx context.Context, caller Caller, ref, id string) (api.CodeContext, error) {
	p, err := s.opts.Sandboxes.Process(ctx, caller, ref, kernel.ProcessID(id))
	if err != nil && api.CodeOf(err) != api.CodeNotFound {
		return api.CodeContext{}, err
	}
	c, ok := kernel.Context(p)
	switch {
	case err != nil && p.ExecID == "" || !ok:
		if _, gerr := s.opts.Sandboxes.Get(caller, ref); gerr != nil {
			return c, gerr
		}
		return c, api.Errorf(api.CodeNotFound, "there is no code context %.60q", id).WithHint("`cloche code ls` lists the contexts of a sandbox")
	case p.State.Ended():
		return c, api.Errorf(api.CodeState, "code context %s has ended", id).WithHint("remove it with `cloche code rm`, and create another")
	}
	return c, nil
}

// RemoveContext ends a code context and removes its process.
func (s *Service) RemoveContext(ctx context.Context, caller Caller, ref, id string) error {
	if _, err := s.context(ctx, caller, ref, id); err != nil && api.CodeOf(err) != api.CodeState {
		return err
	}
	return s.RemoveProcess(ctx, caller, ref, kernel.ProcessID(id))
}

// RestartContext starts the kernel of a code context anew, without its variables. It is recorded as a
// signal to the process. A run in progress ends.
func (s *Service) RestartContext(ctx context.Context, caller Caller, ref, id string) error {
	d := details{"exec_id": kernel.ProcessID(id), "signal": "restart"}
	return s.process(ctx, caller, policy.VerbSignal, ref, d, func(sandboxID string) error {
		if err := s.opts.Sandboxes.Authorize(caller, policy.VerbSignal, sandboxID); err != nil {
			return err
		}
		b, conn, err := s.dialContext(ctx, caller, sandboxID, id)
		if err != nil {
			return err
		}
		return b.Restart(ctx, conn)
	})
}

func (s *Service) dialContext(ctx context.Context, caller Caller, sandbox, id string) (kernel.Bridge, net.Conn, error) {
	c, err := s.context(ctx, caller, sandbox, id)
	if err != nil {
		return kernel.Bridge{}, nil, err
	}
	b, err := s.bridge(ctx, caller, sandbox, c)
	if err != nil {
		return b, nil, err
	}
	conn, err := s.opts.Sandboxes.DialOwn(ctx, caller, sandbox, b.Port)
	return b, conn, err
}

// RunCode runs code in a context and calls fn with its events. It is recorded as an exec, with the code
// in place of the arguments. The end of ctx interrupts the run.
func (s *Service) RunCode(ctx context.Context, caller Caller, ref string, r api.CodeRequest, fn func(api.CodeEvent) error) error {
	if r.Context != "" && r.Language != "" {
		return api.Invalid("language", "the request has a context and a language").WithHint("a context has its own language: leave one out")
	}
	asked := api.ExecRequest{Python: r.Code, Env: r.Env, TimeoutMS: r.TimeoutMS}
	id := r.Context
	if id == "" {
		id = kernel.Language(r.Language)
	}
	d := s.execDetails(asked)
	d["ref"], d["context"] = ref, bound(id)
	if r.Code == "" {
		asked.Python = " " // a run without code is one
	}
	sb, permit, err := s.permitExec(caller, ref, asked)
	if err == nil {
		err = s.intend(ctx, caller, policy.VerbExec, sb.ID, d)
	} else {
		err = s.refused(ctx, caller, policy.VerbExec, sb.ID, d, err)
	}
	if err == nil {
		err = s.beforeRun(ctx, caller, sb)
	}
	if err != nil {
		return s.remember(ctx, caller, api.StageExecution, sb.ID, api.Naming{}, err)
	}
	var last api.CodeEvent
	err = s.runCode(ctx, caller, sb.ID, id, r, permit.Timeout(), func(e api.CodeEvent) error {
		last = e
		return fn(e)
	})
	end := maps.Clone(d)
	end["status"] = bound(last.Status)
	err = s.done(context.WithoutCancel(ctx), caller, policy.VerbExec, sb.ID, end, err)
	if qerr := s.afterRun(ctx, caller, sb); err == nil {
		err = qerr
	}
	return s.remember(ctx, caller, api.StageExecution, sb.ID, api.Naming{}, err)
}

func (s *Service) runCode(ctx context.Context, caller Caller, sandbox, id string, r api.CodeRequest, timeout time.Duration, fn func(api.CodeEvent) error) error {
	b, conn, err := s.dialContext(ctx, caller, sandbox, id)
	if err != nil && r.Context == "" && (api.CodeOf(err) == api.CodeNotFound || api.CodeOf(err) == api.CodeState) {
		// The default context of a language is created by its first run, and again when it has ended.
		if api.CodeOf(err) == api.CodeState {
			if err := s.RemoveProcess(ctx, caller, sandbox, kernel.ProcessID(id)); err != nil {
				return err
			}
		}
		if _, err := s.CreateContext(ctx, caller, sandbox, api.CodeContextSpec{ID: id, Language: id}); err != nil {
			return err
		}
		b, conn, err = s.dialContext(ctx, caller, sandbox, id)
	}
	if err != nil {
		return err
	}
	if timeout > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeoutCause(ctx, timeout+runGrace, api.Errorf(api.CodeTimeout, "the code context did not end the run within %s of its timeout", runGrace))
		defer cancel()
	}
	return b.Run(ctx, conn, r.Code, r.Env, timeout, fn)
}
