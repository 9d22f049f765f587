package core

import (
	"cmp"
	"context"
	"errors"
	"io"
	"os"
	"strconv"
	"sync"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/agent"
	"github.com/cloche-dev/cloche/internal/archive"
	"github.com/cloche-dev/cloche/internal/image/build"
	"github.com/cloche-dev/cloche/internal/policy"
)

const (
	// buildLabel is the label of the sandboxes of a build.
	buildLabel = "cloche.build"
	// maxBuildFile bounds the files of a sandbox that a build reads, such as /etc/passwd.
	maxBuildFile = 1 << 20
	// maxContext and maxContextFiles bound the context of a build.
	maxContext      = 32 << 30
	maxContextFiles = 2_000_000
)

// BuildImage builds an image from a Dockerfile or a list of packages. files is the build's context, a tar;
// it can be nil. tell gets the events, one call at a time, and the image is the last. The sandboxes of the
// build are created, and its programs run, as the caller would do it.
func (s *Service) BuildImage(ctx context.Context, caller Caller, req api.ImageBuildRequest, files io.Reader, tell func(api.BuildEvent)) (api.Image, error) {
	d := details{"image": bound(req.Name)}
	plan, err := planOf(req)
	if err == nil {
		err = policy.DecideImageName(req.Name, caller)
	}
	return s.makeImage(ctx, caller, policy.VerbBuildImage, d, err, func() (api.Image, error) {
		r := build.Request{
			Name: req.Name, Plan: plan, Args: req.Args, Labels: req.Labels, NoCache: req.NoCache, Secrets: map[string][]byte{},
		}
		for _, secret := range req.Secrets {
			r.Secrets[secret.ID] = secret.Value
		}
		if files != nil {
			tree, err := s.opts.Images.Spool(ctx, files, archive.Limits{Bytes: maxContext, Entries: maxContextFiles})
			if err != nil {
				return api.Image{}, err
			}
			defer tree.Close()
			r.Context = tree
		}
		d["steps"] = strconv.Itoa(plan.Steps())
		return s.builder(caller, req.Sandbox, req.Name, tell).Build(ctx, s.forTenant(r, caller))
	})
}

// BuildPlan is BuildImage of a plan. r has no tenant and no caches.
func (s *Service) BuildPlan(ctx context.Context, caller Caller, r build.Request, spec api.BuildSandbox, tell func(api.BuildEvent)) (api.Image, error) {
	d := details{"image": bound(r.Name), "steps": strconv.Itoa(r.Plan.Steps())}
	return s.makeImage(ctx, caller, policy.VerbBuildImage, d, policy.DecideImageName(r.Name, caller), func() (api.Image, error) {
		return s.builder(caller, spec, r.Name, tell).Build(ctx, s.forTenant(r, caller))
	})
}

// TagImage gives an image that the caller sees another name.
func (s *Service) TagImage(ctx context.Context, caller Caller, ref, name string) (api.Image, error) {
	d := details{"image": bound(name), "of": bound(ref)}
	img, err := s.InspectImage(ctx, caller, ref)
	if err == nil {
		err = policy.DecideImageName(name, caller)
	}
	return s.makeImage(ctx, caller, policy.VerbCommitImage, d, err, func() (api.Image, error) {
		return s.opts.Images.Tag(ctx, img.Digest, name)
	})
}

// forTenant completes a request with what belongs to the caller's tenant.
func (s *Service) forTenant(r build.Request, caller Caller) build.Request {
	r.Tenant, r.Caches = cmp.Or(caller.Tenant, policy.LocalTenant), build.DirCaches{Dir: s.opts.Images.CachesDir()}
	return r
}

func planOf(req api.ImageBuildRequest) (*build.Plan, error) {
	text := req.Dockerfile
	if (text == "") == (req.Packages == nil) {
		return nil, api.Invalid("dockerfile", "set either dockerfile or packages")
	}
	if req.Packages != nil {
		var err error
		if text, err = build.Packages(*req.Packages); err != nil {
			return nil, err
		}
	}
	return build.Dockerfile([]byte(text), req.Target, req.Args)
}

func (s *Service) builder(caller Caller, spec api.BuildSandbox, name string, tell func(api.BuildEvent)) *build.Builder {
	var mu sync.Mutex
	serial := func(e api.BuildEvent) {
		mu.Lock()
		defer mu.Unlock()
		tell(e)
	}
	return &build.Builder{
		Images: s.opts.Images, Log: s.log, Tell: serial,
		Sandboxes: &buildSandboxes{s: s, caller: caller, spec: spec, name: name, tell: serial},
	}
}

// buildSandboxes creates the sandboxes of a build.
type buildSandboxes struct {
	s      *Service
	caller Caller
	spec   api.BuildSandbox
	name   string
	tell   func(api.BuildEvent)
}

// sandbox is what a sandbox of the build is created from.
func (b *buildSandboxes) sandbox(ref string, pull api.PullPolicy) api.SandboxSpec {
	writable := false
	return api.SandboxSpec{
		Image: ref, Pull: pull, Profile: b.spec.Profile, Engine: b.spec.Engine, Network: b.spec.Network, Egress: b.spec.Egress,
		Secrets: b.spec.Secrets, Endpoints: b.spec.Endpoints, Limits: b.spec.Limits, User: "root", Cwd: "/", ReadOnlyRoot: &writable,
		Labels: map[string]string{buildLabel: bound(b.name)},
	}
}

// Base implements build.Sandboxes. The image is decided as for a create.
func (b *buildSandboxes) Base(ctx context.Context, ref string) (api.Image, func(), error) {
	permit, err := b.s.decide(ctx, b.caller, b.sandbox(ref, api.PullMissing), true)
	if err != nil {
		return api.Image{}, nil, err
	}
	ctx = WithPullProgress(ctx, func(p api.PullProgress) { b.tell(api.BuildEvent{Pull: &p}) })
	_, release, err := b.s.fetch(ctx, b.caller, permit, nil)
	if err != nil {
		return api.Image{}, nil, err
	}
	img, err := b.s.opts.Images.Base(ctx, permit.Image().Ref)
	if err != nil {
		release()
		return api.Image{}, nil, err
	}
	return img, release, nil
}

// Start implements build.Sandboxes.
func (b *buildSandboxes) Start(ctx context.Context, ref string) (build.Sandbox, error) {
	sb, release, err := b.s.Hold(ctx, b.caller, b.sandbox(ref, api.PullNever), nil)
	if err != nil {
		return nil, err
	}
	return &buildSandbox{s: b.s, caller: b.caller, id: sb.ID, traits: build.Traits{OneOwner: oneOwner(sb), NoNetwork: sb.Network == api.NetworkNone}, release: release}, nil
}

// buildSandbox is one of them.
type buildSandbox struct {
	s       *Service
	caller  Caller
	id      string
	traits  build.Traits
	release func()
}

// Close implements build.Sandbox.
func (b *buildSandbox) Close() { b.release() }

// Run implements build.Sandbox. The program is a managed process, whose removal kills what it has left.
func (b *buildSandbox) Run(ctx context.Context, p build.Program, output func(api.Stream, []byte)) (status int, err error) {
	proc, err := b.s.StartProcess(ctx, b.caller, b.id, api.ProcessSpec{
		ExecRequest: api.ExecRequest{Argv: p.Argv, Env: p.Env, Cwd: p.Cwd, User: p.User}, OnFull: api.OnFullBlock,
	})
	if err != nil {
		return 0, err
	}
	defer func() {
		err = errors.Join(err, b.s.RemoveProcess(context.WithoutCancel(ctx), b.caller, b.id, proc.ExecID))
	}()
	var begin int64
	a, err := b.s.Attach(ctx, b.caller, b.id, proc.ExecID, api.AttachRequest{Since: &begin})
	if err != nil {
		return 0, err
	}
	defer a.Close()
	defer context.AfterFunc(ctx, func() { _ = a.Close() })()
	for {
		ev, err := a.Recv()
		if err != nil {
			return 0, cmp.Or(context.Cause(ctx), err)
		}
		if len(ev.Data) > 0 {
			output(ev.Stream, ev.Data)
		}
		if ev.Exit != nil {
			return exitStatus(*ev.Exit)
		}
	}
}

// exitStatus is the status of a program that has exited, or the error that says why it has no status.
func exitStatus(res api.Result) (int, error) {
	switch {
	case res.TimedOut:
		return 0, api.Errorf(api.CodeTimeout, "it ran longer than its time limit").WithHint("raise the limit of the build with --timeout")
	case res.OOM:
		return 0, api.Errorf(api.CodeQuota, "it was killed because it used more memory than the sandbox has").WithHint("raise the limit of the build with --memory")
	}
	if res.ExitCode == nil {
		return 0, api.Errorf(api.CodeState, "it ended without an exit status: %.200s", cmp.Or(res.Reason, "signal "+res.Signal))
	}
	return *res.ExitCode, nil
}

// Unpack implements build.Sandbox.
func (b *buildSandbox) Unpack(ctx context.Context, dir string, tar io.Reader) error {
	o := api.TarInOptions{Owner: api.OwnerKeep}
	if b.traits.OneOwner {
		o.Owner = ""
	}
	_, err := b.s.TarIn(ctx, b.caller, b.id, dir, o, tar)
	return err
}

// Traits implements build.Sandbox.
func (b *buildSandbox) Traits() build.Traits { return b.traits }

// oneOwner reports whether the files of a sandbox can only belong to its root user: the sandboxes of a daemon
// without root have one ID, unless another daemon runs them.
func oneOwner(sb api.Sandbox) bool {
	return os.Geteuid() > 0 && sb.Engine != "docker" && sb.Engine != "podman"
}

// Pack implements build.Sandbox.
func (b *buildSandbox) Pack(ctx context.Context, dir string, exclude []string, w io.Writer) error {
	_, err := b.s.TarOut(ctx, b.caller, b.id, dir, api.TarOutOptions{Exclude: exclude, KeepLinks: true}, w)
	return err
}

// Tree implements build.Sandbox.
func (b *buildSandbox) Tree(ctx context.Context, top string, fn func(agent.TreeEntry) error) error {
	return b.s.Tree(ctx, b.caller, b.id, top, fn)
}

// PackOnly implements build.Sandbox.
func (b *buildSandbox) PackOnly(ctx context.Context, top string, names []string, w io.Writer) (api.TarReport, error) {
	return b.s.PackOnly(ctx, b.caller, b.id, top, names, w)
}

// Stat implements build.Sandbox.
func (b *buildSandbox) Stat(ctx context.Context, path string) (api.FileInfo, error) {
	return b.s.StatFile(ctx, b.caller, b.id, api.FilePlace{Path: path}, true)
}

// ReadFile implements build.Sandbox.
func (b *buildSandbox) ReadFile(ctx context.Context, path string) ([]byte, error) {
	r, _, err := b.s.ReadFile(ctx, b.caller, b.id, api.FilePlace{Path: path}, 0, maxBuildFile)
	if err != nil {
		return nil, err
	}
	defer r.Close()
	return io.ReadAll(io.LimitReader(r, maxBuildFile))
}

// Remove implements build.Sandbox.
func (b *buildSandbox) Remove(ctx context.Context, path string) error {
	return b.s.RemoveFile(ctx, b.caller, b.id, api.FilePlace{Path: path}, api.RemoveFileOptions{Recursive: true})
}

// CommitImage makes an image of a running sandbox: its image, and what differs from it in the root.
func (s *Service) CommitImage(ctx context.Context, caller Caller, ref string, req api.ImageCommitRequest) (api.Image, error) {
	d := details{"image": bound(req.Name), "ref": bound(ref)}
	sb, err := s.opts.Sandboxes.Get(caller, ref)
	if err == nil {
		err = policy.DecideImageName(req.Name, caller)
	}
	return s.makeImage(ctx, caller, policy.VerbCommitImage, d, err, func() (api.Image, error) {
		d["sandbox"] = sb.ID
		base := s.imageOfSandbox(sb)
		config := api.ImageConfig{}
		if img, err := s.opts.Images.Inspect(base); err == nil && img.Config != nil {
			config = *img.Config
		}
		if req.Config != nil {
			config = mergeConfig(config, *req.Config)
		}
		return build.Commit(ctx, s.opts.Images, &buildSandbox{s: s, caller: caller, id: sb.ID, release: func() {}}, req.Name, base, sb.CreatedAt, config)
	})
}

// imageOfSandbox is the image that a sandbox was created from, even if its name has another image by now.
func (s *Service) imageOfSandbox(sb api.Sandbox) string {
	if sb.Image == api.DefaultImage || sb.ImageDigest == "" {
		return sb.Image
	}
	return sb.ImageDigest
}

// mergeConfig puts what a commit sets over the configuration of the image.
func mergeConfig(c, over api.ImageConfig) api.ImageConfig {
	c.Env = append(c.Env[:len(c.Env):len(c.Env)], over.Env...)
	c.User, c.WorkingDir, c.StopSignal = cmp.Or(over.User, c.User), cmp.Or(over.WorkingDir, c.WorkingDir), cmp.Or(over.StopSignal, c.StopSignal)
	if over.Entrypoint != nil {
		c.Entrypoint, c.Cmd = over.Entrypoint, nil
	}
	if over.Cmd != nil {
		c.Cmd = over.Cmd
	}
	return c
}

// ExportImage writes an image as a tar that is an OCI layout and an archive of Docker.
func (s *Service) ExportImage(ctx context.Context, caller Caller, ref string, w io.Writer) error {
	img, err := s.InspectImage(ctx, caller, ref)
	d := details{"image": bound(ref)}
	if err != nil {
		return s.refused(ctx, caller, policy.VerbExportImage, "", d, err)
	}
	return s.recorded(ctx, caller, policy.VerbExportImage, "", d, func() error {
		defer s.opts.Images.Hold(img.Digest)()
		return s.opts.Images.Export(ctx, cmp.Or(img.Digest, img.Name), img.Name, w)
	})
}
