// Package build makes images: it runs the steps of a build in sandboxes and keeps what each of them changed
// as a layer. It parses Dockerfiles with BuildKit's own parser.
//
// A stage of a build has one sandbox, which is created at its first step whose layer is not cached. After a
// step the agent lists the root filesystem. What differs from the list before
// is packed as the step's layer. The result is the base image with the layers over it.
package build

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"runtime"
	"strconv"
	"strings"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/image"
	"github.com/cloche-dev/cloche/internal/image/capture"
)

// maxLayers is how many bytes of cached layers are kept after a build.
const maxLayers = 20 << 30

// Sandboxes starts sandboxes and gets images, for one caller.
type Sandboxes interface {
	// Base makes an image available, which is pulled if that is needed and allowed. release lets it go.
	Base(ctx context.Context, ref string) (img api.Image, release func(), err error)
	// Start starts a sandbox of an image that is on this machine. The root user runs its processes.
	Start(ctx context.Context, ref string) (Sandbox, error)
}

// Sandbox is the sandbox of a stage. One goroutine at a time uses it.
type Sandbox interface {
	// Run runs a program to its end and kills what it left behind. It returns the exit status, or an error
	// without one.
	Run(ctx context.Context, p Program, output func(stream api.Stream, data []byte)) (status int, err error)
	// Traits does not change.
	Traits() Traits
	// Unpack unpacks a tar below a directory, with the owners of the tar unless all files belong to root.
	Unpack(ctx context.Context, dir string, tar io.Reader) error
	// Pack writes a tar of what is below a directory, without the excluded paths, which are relative to it.
	Pack(ctx context.Context, dir string, exclude []string, w io.Writer) error
	Files
	capture.Trees
	Close()
}

// Traits are what a build must know about its sandboxes.
type Traits struct {
	// OneOwner: all files belong to root.
	OneOwner bool
	// NoNetwork: the steps have no network.
	NoNetwork bool
}

// Files are the files of a sandbox.
type Files interface {
	// Stat describes what a path leads to, and ReadFile returns a small file.
	Stat(ctx context.Context, path string) (api.FileInfo, error)
	ReadFile(ctx context.Context, path string) ([]byte, error)
	// Remove removes a file, or a directory with what is in it.
	Remove(ctx context.Context, path string) error
}

// Program is a program to run.
type Program struct {
	Argv []string
	Env  map[string]string
	Cwd  string
	User string
}

// Request says what to build.
type Request struct {
	// Name is the name of the image. Tenant is whose cached layers are used.
	Name, Tenant string
	Plan         *Plan
	// Context are the files that COPY copies. It can be nil.
	Context *image.Tree
	// Args are the values of ARG.
	Args map[string]string
	// Secrets are the values of secret mounts, by ID.
	Secrets map[string][]byte
	// Labels are added to the image's.
	Labels map[string]string
	// NoCache runs every step.
	NoCache bool
	// Caches keeps the content of cache mounts.
	Caches Caches
	// Upload opens the tar of a Copy.Upload. It can be nil.
	Upload func(id string) (io.ReadCloser, error)
}

// Builder builds images.
type Builder struct {
	Images    *image.Store
	Sandboxes Sandboxes
	Log       *slog.Logger
	// Tell gets the events of a build, one call at a time.
	Tell func(api.BuildEvent)
}

// Build builds an image and returns its record.
func (b *Builder) Build(ctx context.Context, req Request) (api.Image, error) {
	w := &work{b: b, req: req, stages: make([]*stage, len(req.Plan.Stages)), uploads: map[string]*image.Tree{}}
	defer w.close(ctx)
	needed, err := req.Plan.needed()
	if err != nil {
		return api.Image{}, err
	}
	for i, is := range needed {
		if is {
			w.total += len(req.Plan.Stages[i].Steps)
		}
	}
	for i, is := range needed {
		if !is {
			continue
		}
		if err := w.build(ctx, i); err != nil {
			return api.Image{}, err
		}
	}
	last := w.stages[req.Plan.Target]
	for name, value := range req.Labels {
		last.state.label(name, value)
	}
	img, err := b.Images.Stack(ctx, req.Name, last.stack())
	if err != nil {
		return api.Image{}, err
	}
	if err := b.Images.TrimLayers(maxLayers); err != nil {
		b.Log.Warn("trim layers of builds", "error", err)
	}
	return img, nil
}

// work is one build.
type work struct {
	b      *Builder
	req    Request
	stages []*stage
	// step and total count the steps.
	step, total int
	undo        []func(context.Context)
	// uploads are the files of uploads, by their IDs.
	uploads map[string]*image.Tree
}

// close undoes what the build made beside the image.
func (w *work) close(ctx context.Context) {
	ctx = context.WithoutCancel(ctx)
	for _, s := range w.stages {
		if s != nil {
			s.close()
		}
	}
	for _, files := range w.uploads {
		_ = files.Close()
	}
	for i := len(w.undo) - 1; i >= 0; i-- {
		w.undo[i](ctx)
	}
}

// build builds one stage.
func (w *work) build(ctx context.Context, i int) error {
	plan := w.req.Plan.Stages[i]
	s := &stage{work: w, plan: plan}
	w.stages[i] = s
	if err := s.begin(ctx); err != nil {
		return plan.explain(Step{Text: plan.Text, Line: plan.Line}, err)
	}
	for _, step := range plan.Steps {
		w.step++
		if err := s.do(ctx, step); err != nil {
			return plan.explain(step, err)
		}
	}
	s.close()
	return nil
}

// stage is a stage in progress.
type stage struct {
	work *work
	plan *Stage

	base   string // reference of the image below: a digest, host, or empty
	layers []image.Layer
	key    string // of the cache, after the last step
	state  State

	sandbox Sandbox
	known   capture.Files // what the filesystem was like after the last step
}

// begin finds the base of the stage.
func (s *stage) begin(ctx context.Context) error {
	s.state = State{Shell: []string{"/bin/sh", "-c"}, Args: map[string]string{}, given: s.work.req.Args, global: s.work.req.Plan.Args}
	var identity string
	switch {
	case s.plan.BaseStage >= 0:
		below := s.work.stages[s.plan.BaseStage]
		s.base, s.layers, s.key = below.base, append([]image.Layer(nil), below.layers...), below.key
		s.state.Config = below.state.clone()
		return nil
	case s.plan.Base == Scratch:
		identity = Scratch
	default:
		img, release, err := s.work.b.Sandboxes.Base(ctx, s.plan.Base)
		if err != nil {
			return err
		}
		s.work.undo = append(s.work.undo, func(context.Context) { release() })
		s.base, identity = img.Digest, img.Digest
		if img.Name == api.DefaultImage {
			s.base = api.DefaultImage
		}
		if img.Config != nil {
			s.state.Config = *img.Config
			s.state.Config = s.state.clone()
		}
	}
	if _, ok := s.state.Get("PATH"); !ok {
		s.state.SetEnv("PATH", image.DefaultPath)
	}
	s.key = hash("base", s.work.req.Tenant, runtime.GOARCH, identity)
	return nil
}

// do does one step, or takes its layer from the cache.
func (s *stage) do(ctx context.Context, step Step) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	op, err := step.Resolve(&s.state)
	if err != nil {
		return err
	}
	event := &api.BuildStep{Number: s.work.step, Total: s.work.total, Stage: s.plan.Name, Text: step.Text}
	if op == nil {
		s.work.b.Tell(api.BuildEvent{Step: event})
		return nil
	}
	id, err := op.identify(ctx, s)
	if err != nil {
		return err
	}
	s.key = hash("step", s.key, id)
	if !s.work.req.NoCache && !step.Force && s.sandbox == nil {
		if l, ok := s.work.b.Images.CachedLayer(s.key); ok {
			event.Cached = true
			s.work.b.Tell(api.BuildEvent{Step: event})
			s.layers = append(s.layers, l)
			return nil
		}
	}
	s.work.b.Tell(api.BuildEvent{Step: event})
	if err := s.start(ctx); err != nil {
		return err
	}
	if err := op.do(ctx, s); err != nil {
		return err
	}
	l, err := s.capture(ctx)
	if err != nil {
		return err
	}
	s.layers = append(s.layers, l)
	return s.work.b.Images.CacheLayer(s.key, l)
}

// stack is what the stage consists of.
func (s *stage) stack() image.StackOptions {
	return image.StackOptions{Base: s.base, Layers: s.layers, Config: s.state.clone()}
}

// start starts the sandbox of the stage, unless it is running.
func (s *stage) start(ctx context.Context) error {
	if s.sandbox != nil {
		return nil
	}
	ref := s.base
	if ref == "" || len(s.layers) > 0 {
		var err error
		if ref, err = s.keep(ctx); err != nil {
			return err
		}
	}
	sandbox, err := s.work.b.Sandboxes.Start(ctx, ref)
	if err != nil {
		return err
	}
	s.sandbox = sandbox
	files, err := s.work.b.Images.OpenFiles(ctx, ref)
	if err != nil {
		return err
	}
	defer files.Close()
	if err := s.restoreTmp(ctx, files); err != nil {
		return err
	}
	now, err := capture.ListAll(ctx, sandbox)
	s.known = now.Files
	return err
}

// keep makes an image of the stage as it is, until the end of the build.
func (s *stage) keep(ctx context.Context) (string, error) {
	// The name is this build's own: another one of the same removes its own name.
	name := api.BuiltRegistry + "/" + s.work.req.Tenant + "/build-cache:" + s.key[:16] + "-" + strings.ToLower(rand.Text()[:10])
	o := s.stack()
	o.Config = api.ImageConfig{}
	img, err := s.work.b.Images.Stack(ctx, name, o)
	if err != nil {
		return "", err
	}
	release := s.work.b.Images.Hold(img.Digest)
	s.work.undo = append(s.work.undo, func(ctx context.Context) {
		release()
		if err := s.work.b.Images.Remove(ctx, name, nil); err != nil && api.CodeOf(err) != api.CodeNotFound {
			s.work.b.Log.Info("the image of a build is kept until it is pruned", "image", name, "error", err)
		}
	})
	return name, nil
}

// files opens the files that the stage consists of; the caller closes them.
func (s *stage) files(ctx context.Context) (*image.Tree, error) {
	name, err := s.keep(ctx)
	if err != nil {
		return nil, err
	}
	return s.work.b.Images.OpenFiles(ctx, name)
}

func (s *stage) close() {
	if s.sandbox != nil {
		s.sandbox.Close()
		s.sandbox = nil
	}
}

// warn tells of something that the image lacks.
func (s *stage) warn(format string, args ...any) {
	s.work.b.Tell(api.BuildEvent{Warning: fmt.Sprintf(format, args...)})
}

// hash is a key of the cache.
func hash(parts ...string) string {
	data, _ := json.Marshal(parts) // strings always encode
	sum := sha256.Sum256(data)
	return hex.EncodeToString(sum[:])
}

// explain names the step of an error.
func (st *Stage) explain(step Step, err error) error {
	at := ""
	if step.Line > 0 {
		at = "line " + strconv.Itoa(step.Line) + ": "
	}
	text := step.Text
	if i := strings.IndexByte(text, '\n'); i >= 0 {
		text = text[:i] + " …"
	}
	if e, ok := errorOf(err); ok {
		out := *e
		out.Message = fmt.Sprintf("%s%.200s: %s", at, text, e.Message)
		return &out
	}
	return fmt.Errorf("%s%.200s: %w", at, text, err)
}
