package core

import (
	"bufio"
	"bytes"
	"cmp"
	"compress/gzip"
	"context"
	"errors"
	"io"
	"strings"
	"time"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/audit"
	"github.com/cloche-dev/cloche/internal/policy"
)

// maxUnpacked limits the unpacked size of a compressed directory of a job.
const maxUnpacked = 4 << 30

// create creates the job's own sandbox.
func (r *jobRun) create(ctx context.Context) error {
	d := audit.SpecDetails(*r.spec.Spec)
	d["job"] = r.rec.ID
	sb, err := r.s.create(ctx, r.caller, policy.VerbCreate, r.prep.permit, d, nil)
	if err != nil {
		return r.s.remember(ctx, r.caller, api.StageBuild, sb.ID, r.spec.Spec.Naming, err)
	}
	r.change(func(p *api.Job) { p.Sandbox = &sb }, nil)
	return nil
}

// files writes the job's own files and directories.
func (r *jobRun) files(ctx context.Context) error {
	if err := r.write(ctx, "files", r.spec.Files); err != nil {
		return err
	}
	for i, dir := range r.spec.Dirs {
		field := fieldAt("dirs", i)
		if err := r.s.MakeDir(ctx, r.caller, r.sandbox(), api.FilePlace{Path: dir.Path}, api.MakeDirOptions{Mode: 0o755}); err != nil {
			return inField(field+".path", err)
		}
		in, err := unpacked(dir.Archive)
		if err != nil {
			return inField(field+".archive", err)
		}
		if _, err := r.s.TarIn(ctx, r.caller, r.sandbox(), dir.Path, api.TarInOptions{}, in); err != nil {
			return inField(field, err)
		}
	}
	return nil
}

// unpacked returns the tar of a directory, which may be compressed.
func unpacked(archive []byte) (io.Reader, error) {
	if !bytes.HasPrefix(archive, []byte{0x1f, 0x8b}) {
		return bytes.NewReader(archive), nil
	}
	z, err := gzip.NewReader(bufio.NewReader(bytes.NewReader(archive)))
	if err != nil {
		return nil, api.Invalid("archive", "the archive begins like gzip and is not").WithHint("send a tar, compressed by gzip or not")
	}
	return io.LimitReader(z, maxUnpacked), nil
}

func (r *jobRun) state(ctx context.Context) error { return r.write(ctx, "state", r.spec.State) }

func (r *jobRun) write(ctx context.Context, field string, files []api.File) error {
	for i, f := range files {
		_, err := r.s.WriteFile(ctx, r.caller, r.sandbox(), api.FilePlace{Path: f.Path}, cmp.Or(f.Mode, 0o644), bytes.NewReader(f.Content))
		if err != nil {
			return inField(fieldAt(field, i)+".path", err)
		}
	}
	return nil
}

// network replaces the network rules of setup with the final ones, and continues when they are
// confirmed. Both were granted before the job began.
func (r *jobRun) network(ctx context.Context) error {
	id := r.sandbox()
	sb, err := r.s.opts.Sandboxes.Get(r.caller, id)
	if err != nil {
		return err
	}
	_, used, err := r.s.opts.Sandboxes.Egress(r.caller, policy.VerbChangeEgress, id)
	if err != nil {
		return err
	}
	next, ok := r.prep.permit.LaterEgress()
	if !ok {
		return api.Errorf(api.CodeInternal, "no network was granted for the time after setup")
	}
	d := policyDetails(api.EgressPolicy{Network: next.Network(), Egress: &next.Shown})
	d["job"] = r.rec.ID
	rules, err := r.s.putEgress(ctx, r.caller, sb, d, func(g policy.EgressGrant) (policy.EgressGrant, error) {
		return policy.SucceedEgress(next, g, used, policy.SettingsOf(sb), r.s.rules(), time.Now())
	})
	if err == nil && rules.Applied != rules.Generation {
		err = api.Errorf(api.CodeInternal, "rules %d were put in force, and %d are", rules.Generation, rules.Applied)
	}
	if err != nil {
		return err
	}
	r.change(func(*api.Job) { r.present().Egress = &rules }, nil)
	return nil
}

// commands runs the commands of a phase and then makes its snapshot, if it has one.
func (r *jobRun) commands(name string, reqs []api.ExecRequest, spec *api.JobPhase) func(context.Context) error {
	return func(ctx context.Context) error {
		for i, req := range reqs {
			req.ExecID = r.execID(name, i)
			if _, err := r.exec(ctx, i, "", req); err != nil {
				return err
			}
		}
		if spec.Snapshot == "" {
			return nil
		}
		snap, err := r.s.CreateSnapshot(ctx, r.caller, r.sandbox(), api.SnapshotRequest{Name: spec.Snapshot, Labels: map[string]string{"job": r.rec.ID, "program": r.rec.ID}})
		if err != nil {
			return err
		}
		r.change(func(*api.Job) { r.present().Snapshot = snap.ID }, nil)
		return nil
	}
}

// commandError is the error of a command that did not succeed.
type commandError struct {
	n   int
	res api.Result
	// err says why there is no result. It is nil if res has the reason.
	err error
}

func (e *commandError) Error() string {
	if e.err != nil {
		return e.err.Error()
	}
	return "a command failed"
}

func (e *commandError) Unwrap() error { return e.err }

// exec runs the n-th command of a phase.
func (r *jobRun) exec(ctx context.Context, n int, handler string, req api.ExecRequest) (api.Result, error) {
	text := beginning(r.s.command(shownCommand(req)), loggedCommand)
	r.begin(n, api.JobCommandRecord{Handler: handler, Command: text})
	req.Naming = r.naming()
	res, err := r.await(ctx, req)
	if err == nil {
		err = ctx.Err()
	}
	if err != nil {
		return res, &commandError{n: n, err: err}
	}
	r.trim(&res)
	r.change(func(*api.Job) {
		list := r.present().Commands
		list[len(list)-1].Result = &res
	}, nil)
	if !res.OK() {
		return res, &commandError{n: n, res: res}
	}
	return res, nil
}

// begin records the start of a command.
func (r *jobRun) begin(n int, c api.JobCommandRecord) {
	c.StartedAt = time.Now().UTC()
	r.change(func(p *api.Job) { r.present().Commands = append(r.present().Commands, c) },
		&api.JobStep{Phase: r.look().Phase, State: stepRunning, Command: &n, Text: c.Command})
}

// shownCommand returns the command line of a request.
func shownCommand(req api.ExecRequest) []string {
	switch {
	case req.Shell != "":
		return []string{"/bin/sh", "-c", req.Shell}
	case req.Python != "":
		return []string{"python3", "-c", req.Python}
	}
	return req.Argv
}

// await runs a command to its end. In a sandbox that is kept, only the job ends the command
// when the job is cancelled. So await returns after the command has ended in that case too.
func (r *jobRun) await(ctx context.Context, req api.ExecRequest) (api.Result, error) {
	if r.spec.Spec != nil {
		return r.s.Exec(ctx, r.caller, r.sandbox(), req)
	}
	lasting, giveUp := context.WithCancel(context.WithoutCancel(ctx))
	defer giveUp()
	ended, killed := make(chan struct{}), make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		defer close(killed)
		defer giveUp()
		r.kill(req.ExecID, ended)
	})
	res, err := r.s.Exec(lasting, r.caller, r.sandbox(), req)
	close(ended)
	if !stop() {
		<-killed
	}
	return res, err
}

// kill ends a command of a cancelled job. The command may be about to start.
func (r *jobRun) kill(execID string, ended <-chan struct{}) {
	ctx, cancel := context.WithTimeout(r.base, jobCleanup)
	defer cancel()
	again := time.NewTicker(100 * time.Millisecond)
	defer again.Stop()
	for {
		err := r.s.opts.Sandboxes.SignalProcess(ctx, r.caller, r.sandbox(), execID, api.SignalRequest{Signal: "KILL"})
		if err != nil && !errors.Is(err, api.ErrNotFound) {
			r.s.log.Warn("end a command of a cancelled job", "job", r.rec.ID, "exec", execID, "error", err)
		}
		select {
		case <-ended:
			return
		case <-ctx.Done():
			return
		case <-again.C:
		}
	}
}

// trim limits the size of a job's record.
func (r *jobRun) trim(res *api.Result) {
	if r.kept > maxKeptOutput {
		for _, s := range []struct {
			out    *api.Bytes
			counts *api.StreamCounts
		}{{&res.Stdout, &res.StdoutInfo}, {&res.Stderr, &res.StderrInfo}} {
			if cut := len(*s.out) - keptTail; cut > 0 {
				*s.out = (*s.out)[cut:]
				s.counts.Dropped += s.counts.Kept - keptTail
				s.counts.Kept, res.Truncated, res.Chunks = keptTail, true, nil
			}
		}
	}
	r.kept += len(res.Stdout) + len(res.Stderr)
}

// handlers runs the caller's own steps.
func (r *jobRun) handlers(ctx context.Context) error {
	n := 0
	for i, h := range r.spec.Handlers {
		for _, req := range r.prep.plan.Handlers[i] {
			req.ExecID = r.execID(api.PhaseHandlers, n)
			if _, err := r.exec(ctx, n, h.Name, req); err != nil {
				return err
			}
			n++
		}
		if h.Wait {
			if err := r.wait(ctx, h); err != nil {
				return err
			}
		}
	}
	return nil
}

// errHandler is the failure that the caller reported for its handler.
type errHandler struct{ text string }

func (e *errHandler) Error() string { return e.text }

// errHandlerTime is the end of the time that a handler has.
var errHandlerTime = errors.New("the job was not continued in time")

// wait waits until the caller continues the job.
func (r *jobRun) wait(ctx context.Context, h api.JobHandler) error {
	r.change(func(p *api.Job) { p.State, p.Handler = api.JobWaiting, h.Name },
		&api.JobStep{Phase: api.PhaseHandlers, State: stepWaiting, Text: h.Name})
	defer r.change(func(p *api.Job) { p.State, p.Handler = api.JobRunning, "" }, nil)
	timer := time.NewTimer(policy.HandlerTimeout(h))
	defer timer.Stop()
	for {
		select {
		case c := <-r.answers:
			if c.Handler != h.Name {
				continue // it was for an earlier handler, whose time was over
			}
			if c.Failed != "" {
				return &errHandler{"handler " + h.Name + " failed: " + bound(c.Failed)}
			}
			return nil
		case <-timer.C:
			return errHandlerTime
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// channels starts the processes that the run uses, and waits until they are ready.
func (r *jobRun) channels(ctx context.Context) error {
	for i, spec := range r.prep.plan.Channels {
		spec.ExecID = cmp.Or(spec.ExecID, r.execID(api.PhaseChannels, i))
		r.begin(i, api.JobCommandRecord{Channel: spec.ExecID, Command: beginning(r.s.command(shownCommand(spec.ExecRequest)), loggedCommand)})
		spec.Naming = r.naming()
		if _, err := r.s.StartProcess(ctx, r.caller, r.sandbox(), spec); err != nil {
			return &commandError{n: i, err: err}
		}
		if spec.Ready == nil {
			continue
		}
		if err := r.ready(ctx, i, spec); err != nil {
			return err
		}
	}
	return nil
}

// ready waits for a channel.
func (r *jobRun) ready(ctx context.Context, n int, spec api.ProcessSpec) error {
	end := time.Now().Add(time.Duration(cmp.Or(spec.Ready.TimeoutMS, api.DefaultReadyTimeoutMS)) * time.Millisecond)
	for {
		left := time.Until(end)
		if left <= 0 {
			return &commandError{n: n, res: api.Result{TimedOut: true, ExecID: spec.ExecID, Reason: "it did not become ready in time"}}
		}
		p, err := r.s.WaitProcess(ctx, r.caller, r.sandbox(), spec.ExecID, api.WaitRequest{Ready: true, TimeoutMS: max(1, left.Milliseconds())})
		switch {
		case err != nil:
			return &commandError{n: n, err: err}
		case p.State == api.ProcessReady:
			return nil
		case p.State.Ended():
			res := api.Result{ExitCode: p.ExitCode, Signal: p.Signal, OOM: p.OOM, TimedOut: p.TimedOut, SandboxLost: p.State == api.ProcessUnknown,
				Reason: cmp.Or(p.Reason, "it ended before it was ready: "+p.LastStderr), ExecID: p.ExecID}
			return &commandError{n: n, res: res}
		}
	}
}

// score judges the result of run.
func (r *jobRun) score(ctx context.Context) error {
	var last api.Result
	var failed error
	for i, req := range r.prep.plan.Score {
		req.ExecID = r.execID(api.PhaseScore, i)
		if last, failed = r.exec(ctx, i, "", req); failed != nil {
			break
		}
	}
	if e, ok := errors.AsType[*commandError](failed); ok && e.err != nil {
		return failed
	}
	sc := &api.JobScore{ExitCode: last.ExitCode, Output: last.Stdout}
	if r.spec.ScoreFile != "" && failed == nil {
		out := r.read(ctx, api.JobOutputSpec{Path: r.spec.ScoreFile})
		if sc.File = &out; out.Error != nil {
			failed = inField("score_file", out.Error)
		}
	}
	r.change(func(p *api.Job) { p.Score = sc }, nil)
	return failed
}

// collect reads the output files from a sandbox that still runs.
func (r *jobRun) collect(ctx context.Context) {
	id := r.sandbox()
	if id == "" || len(r.spec.Outputs) == 0 {
		return
	}
	if sb, err := r.s.opts.Sandboxes.Get(r.caller, id); err != nil || sb.State != api.StateRunning {
		return
	}
	var all []api.JobOutput
	for _, o := range r.spec.Outputs {
		all = append(all, r.read(ctx, o))
	}
	r.change(func(p *api.Job) { p.Outputs = all }, nil)
}

// read reads the beginning of a file.
func (r *jobRun) read(ctx context.Context, o api.JobOutputSpec) api.JobOutput {
	most := cmp.Or(o.MaxBytes, api.DefaultJobOutput)
	out := api.JobOutput{Path: o.Path, Content: api.Bytes{}}
	in, info, err := r.s.ReadFile(ctx, r.caller, r.sandbox(), api.FilePlace{Path: o.Path}, 0, most)
	if err == nil {
		out.Content, err = io.ReadAll(io.LimitReader(in, most))
		if cerr := in.Close(); err == nil {
			err = cerr
		}
	}
	if err != nil {
		out.Content, out.Error = api.Bytes{}, toError(err)
		return out
	}
	out.Size = info.Size
	out.Truncated = info.Size > int64(len(out.Content))
	return out
}

// inField adds the part of the request that an error is about.
func inField(field string, err error) error {
	e, ok := errors.AsType[*api.Error](err)
	if !ok {
		return err
	}
	c := *e
	if c.Field = field; !strings.Contains(c.Message, field) {
		c.Message = field + ": " + c.Message
	}
	return &c
}

func fieldAt(list string, i int) string { return list + "[" + itoa(i) + "]" }
