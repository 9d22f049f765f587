package e2bapi

import (
	"context"
	"time"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/core"
)

const (
	// readyWithin is how long a template can take until it is ready, and readyEvery how often that is asked.
	readyWithin = 10 * time.Minute
	readyEvery  = 500 * time.Millisecond
	// readyTimeout limits one run of the command that says whether it is ready.
	readyTimeout = time.Minute
)

// startTemplate runs the start command of a template in a sandbox, and waits until the template is ready.
func (s *Server) startTemplate(ctx context.Context, caller core.Caller, ref string, im api.Image) error {
	start, ready := im.Config.Labels[labelStart], im.Config.Labels[labelReady]
	argv := func(command string) []string { return []string{"/bin/sh", "-c", runShell, "sh", command} }
	if start != "" {
		spec := api.ProcessSpec{Name: "start command", ExecRequest: api.ExecRequest{Argv: argv(start)}}
		if _, err := s.core.StartProcess(ctx, caller, ref, spec); err != nil {
			return err
		}
	}
	if ready == "" {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, readyWithin)
	defer cancel()
	limit := readyTimeout.Milliseconds()
	again := time.NewTicker(readyEvery)
	defer again.Stop()
	for {
		res, err := s.core.Exec(ctx, caller, ref, api.ExecRequest{Argv: argv(ready), TimeoutMS: &limit, CancelWithCaller: true})
		if err == nil && res.ExitCode != nil && *res.ExitCode == 0 {
			return nil
		}
		if err != nil && ctx.Err() == nil {
			return err
		}
		select {
		case <-ctx.Done():
			return api.Errorf(api.CodeTimeout, "the ready command of the template did not succeed within %v: %.200s", readyWithin, string(res.Stderr)).WithCause(err)
		case <-again.C:
		}
	}
}

// tryTemplate starts a template once, in a sandbox that is removed.
func (s *Server) tryTemplate(ctx context.Context, caller core.Caller, t *templateBuild) error {
	ref := builtRef(caller, t.template, t.tags[0])
	im, err := s.core.InspectImage(ctx, caller, ref)
	if err != nil {
		return err
	}
	sb, err := s.core.Create(ctx, caller, api.SandboxSpec{Profile: s.profile, Image: ref, Pull: api.PullNever}, nil)
	if err != nil {
		return err
	}
	err = s.startTemplate(ctx, caller, sb.ID, im)
	s.discard(ctx, caller, sb.ID)
	return err
}
