package build

import (
	"archive/tar"
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"path"
	"slices"
	"strconv"
	"strings"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/image/capture"
)

// Op changes the files of a stage.
type Op interface {
	// identify says what the operation does, for the key of its layer.
	identify(ctx context.Context, s *stage) (string, error)
	do(ctx context.Context, s *stage) error
}

// Types of mounts.
const (
	mountCache  = "cache"
	mountSecret = "secret"
	mountTmpfs  = "tmpfs"
	mountBind   = "bind"
)

// Mount is what a program has only while it runs. Its files are in no layer.
type Mount struct {
	Type string
	// ID names a cache or a secret.
	ID string
	// From is the image or the stage of a bind, empty the context, and Source the path there.
	From, Source string
	// Target is an absolute path. A secret can have the variable Env instead.
	Target, Env string
	// Required refuses a build without the secret.
	Required bool
	// Mode, UID and GID are those of the file of a secret.
	Mode     int64
	UID, GID int

	stage    int
	hasStage bool
}

// complete gives a mount its defaults.
func (m *Mount) complete(s *State) error {
	switch m.Type {
	case mountSecret:
		if m.ID == "" {
			m.ID = path.Base(m.Target)
		}
		if m.ID == "" || m.ID == "." || m.ID == "/" {
			return api.Invalid("dockerfile", "--mount=type=secret needs an id")
		}
		if m.Target == "" && m.Env == "" {
			m.Target = "/run/secrets/" + m.ID
		}
	case mountCache, mountTmpfs, mountBind:
		if m.Target == "" {
			return api.Invalid("dockerfile", "--mount=type=%s needs a target", m.Type)
		}
	default:
		return api.Errorf(api.CodeUnsupported, "--mount=type=%s isn't supported", m.Type)
	}
	if m.Target != "" {
		m.Target = s.Path(m.Target)
		if m.Target == "/" {
			return api.Invalid("dockerfile", "a mount cannot be at /")
		}
	}
	if m.Type == mountCache && m.ID == "" {
		m.ID = m.Target
	}
	return nil
}

// Run runs a program in the stage's sandbox.
type Run struct {
	Argv []string
	// Script is a file to run instead. It names its interpreter.
	Script []byte
	// User and Cwd are not the state's if they are set.
	User, Cwd string
	Mounts    []Mount
}

func (r *Run) identify(ctx context.Context, s *stage) (string, error) {
	var binds []string // what is in bind mounts
	for _, m := range r.Mounts {
		if m.Type != mountBind {
			continue
		}
		id, err := m.files().identify(ctx, s)
		if err != nil {
			return "", err
		}
		binds = append(binds, id)
	}
	data, err := json.Marshal(struct {
		Argv      []string
		Script    []byte
		User, Cwd string
		Env       map[string]string
		Mounts    []Mount
		Binds     []string
	}{r.Argv, r.Script, r.user(s), cmp.Or(r.Cwd, s.state.Cwd()), s.state.env(), r.Mounts, binds})
	return string(data), err
}

// files are the files of a bind mount.
func (m Mount) files() *Copy {
	return &Copy{From: m.From, Sources: []string{path.Join("/", m.Source)}, Dest: m.Target, stage: m.stage, hasStage: m.hasStage}
}

func (r *Run) user(s *stage) string { return cmp.Or(r.User, s.state.Config.User, "root") }

// scriptPath is where a script is while it runs.
const scriptPath = "/tmp/.cloche-run"

func (r *Run) do(ctx context.Context, s *stage) (err error) {
	p := Program{Argv: r.Argv, Env: s.state.env(), Cwd: cmp.Or(r.Cwd, s.state.Cwd()), User: r.user(s)}
	var undo []func(context.Context) error
	defer func() {
		ctx := context.WithoutCancel(ctx)
		for _, f := range slices.Backward(undo) {
			if uerr := f(ctx); uerr != nil && err == nil {
				err = uerr
			}
		}
	}()
	if r.Script != nil {
		if err := s.put(ctx, scriptPath, r.Script, tar.Header{Mode: 0o755}); err != nil {
			return err
		}
		undo = append(undo, func(ctx context.Context) error { return s.remove(ctx, scriptPath) })
		p.Argv = []string{scriptPath}
	}
	for _, m := range r.Mounts {
		f, err := m.attach(ctx, s, p.Env)
		if f != nil {
			undo = append(undo, f)
		}
		if err != nil {
			return err
		}
	}
	status, err := s.sandbox.Run(ctx, p, func(stream api.Stream, data []byte) {
		s.work.b.Tell(api.BuildEvent{Stream: stream, Data: data})
	})
	if err != nil {
		return err
	}
	if status != 0 {
		e := api.Errorf(api.CodeState, "exit status %d", status)
		if s.sandbox.Traits().NoNetwork {
			return e.WithHint("the lines above are what the program printed; the steps have no network, and --allow names the hosts that they need")
		}
		return e.WithHint("the lines above are what the program printed")
	}
	return nil
}

// put writes one file into the sandbox.
func (s *stage) put(ctx context.Context, name string, content []byte, h tar.Header) error {
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	h.Typeflag, h.Name, h.Size = tar.TypeReg, path.Base(name), int64(len(content))
	if err := w.WriteHeader(&h); err != nil {
		return fmt.Errorf("pack %s: %w", name, err)
	}
	if _, err := w.Write(content); err != nil {
		return fmt.Errorf("pack %s: %w", name, err)
	}
	if err := w.Close(); err != nil {
		return fmt.Errorf("pack %s: %w", name, err)
	}
	return s.sandbox.Unpack(ctx, path.Dir(name), &b)
}

// attach gives the program a mount. detach, which can be nil, takes it away again.
func (m Mount) attach(ctx context.Context, s *stage, env map[string]string) (detach func(context.Context) error, err error) {
	if m.Type == mountSecret {
		return m.attachSecret(ctx, s, env)
	}
	// What the mount hides must not be removed with it.
	made, err := s.missing(ctx, m.Target)
	if err != nil {
		return nil, err
	}
	if made == "" && m.Type != mountCache {
		return nil, api.Errorf(api.CodeUnsupported, "the %s mount at %s would hide what the image has there", m.Type, m.Target).WithHint("mount it at a path that the image does not have")
	}
	remove := func(ctx context.Context) error { return s.remove(ctx, made) }
	var own []string // files that the image has in the directory
	if made == "" {
		// The image has the directory: what it has there stays.
		before, err := capture.List(ctx, s.sandbox, m.Target, "")
		if err != nil {
			return nil, err
		}
		for name, e := range before.Files {
			if !e.IsDir() {
				own = append(own, name)
			}
		}
		if len(own) > maxOwn {
			return nil, api.Errorf(api.CodeUnsupported, "the cache mount at %s would hide %d files of the image", m.Target, len(own)).WithHint("mount it at a directory that the image does not have")
		}
		remove = func(ctx context.Context) error { return s.removeNew(ctx, m.Target, before.Files) }
	}
	switch m.Type {
	case mountCache:
		return m.attachCache(ctx, s, own, remove)
	case mountBind:
		return remove, s.copyFiles(ctx, m.files())
	}
	return remove, s.makeDir(ctx, m.Target)
}

// maxOwn bounds the files that the image has at the target of a cache mount.
const maxOwn = 1000

// removeNew removes what a directory did not have before.
func (s *stage) removeNew(ctx context.Context, dir string, before capture.Files) error {
	now, err := capture.List(ctx, s.sandbox, dir, "")
	if err != nil && api.CodeOf(err) != api.CodeNotFound {
		return err
	}
	for name := range now.Files {
		_, had := before[name]
		if _, above := before[path.Dir(name)]; had || !above && path.Dir(name) != "." {
			continue // it goes with the directory that it is in
		}
		if err := s.remove(ctx, path.Join(dir, name)); err != nil {
			return err
		}
	}
	return nil
}

// remove removes a file, or a directory with what is in it, unless the program has removed it.
func (s *stage) remove(ctx context.Context, name string) error {
	err := s.sandbox.Remove(ctx, name)
	if api.CodeOf(err) == api.CodeNotFound {
		return nil
	}
	return err
}

// missing returns the topmost part of a path that is not in the sandbox, or empty.
func (s *stage) missing(ctx context.Context, name string) (string, error) {
	missing := ""
	for at := name; at != "/"; at = path.Dir(at) {
		_, err := s.sandbox.Stat(ctx, at)
		switch {
		case err == nil:
			return missing, nil
		case api.CodeOf(err) != api.CodeNotFound:
			return "", err
		}
		missing = at
	}
	return missing, nil
}

func (m Mount) attachSecret(ctx context.Context, s *stage, env map[string]string) (func(context.Context) error, error) {
	value, ok := s.work.req.Secrets[m.ID]
	if !ok {
		if m.Required {
			return nil, api.Invalid("secrets", "the build needs the secret %.60q", m.ID).WithHint("give it with --secret id=%.60s,src=FILE", m.ID)
		}
		return nil, nil
	}
	if m.Env != "" {
		env[m.Env] = string(value)
	}
	if m.Target == "" {
		return nil, nil
	}
	made, err := s.missing(ctx, m.Target)
	if err != nil {
		return nil, err
	}
	if made == "" {
		return nil, api.Errorf(api.CodeUnsupported, "the secret at %s would replace a file of the image", m.Target)
	}
	return func(ctx context.Context) error { return s.remove(ctx, made) },
		s.put(ctx, m.Target, value, tar.Header{Mode: m.Mode, Uid: m.UID, Gid: m.GID})
}

// Caches keeps the files of cache mounts between builds, by tenant and ID.
type Caches interface {
	// Open returns a tar of the files, or nil without files.
	Open(tenant, id string) (io.ReadCloser, error)
	// Save replaces the files with what write writes, a tar.
	Save(tenant, id string, write func(io.Writer) error) error
}

// attachCache copies the files of a cache into the sandbox, and back when the program has ended.
func (m Mount) attachCache(ctx context.Context, s *stage, own []string, remove func(context.Context) error) (func(context.Context) error, error) {
	caches, tenant := s.work.req.Caches, s.work.req.Tenant
	detach := func(ctx context.Context) error {
		err := caches.Save(tenant, m.ID, func(w io.Writer) error { return s.sandbox.Pack(ctx, m.Target, own, w) })
		if err != nil {
			s.warn("the cache %s is not kept: %v", m.ID, err)
		}
		return remove(ctx)
	}
	if caches == nil {
		return remove, s.makeDir(ctx, m.Target)
	}
	r, err := caches.Open(tenant, m.ID)
	if err != nil {
		return remove, err
	}
	if r == nil {
		return detach, s.makeDir(ctx, m.Target)
	}
	defer r.Close()
	return detach, s.sandbox.Unpack(ctx, m.Target, r)
}

// MakeDir makes a directory and those above it that are missing, for "user" or "user:group".
func MakeDir(path, owner string) Op { return &makeDir{path, owner} }

// makeDir is a WORKDIR.
type makeDir struct {
	path string
	// owner is "user" or "user:group"; empty is root.
	owner string
}

func (d *makeDir) identify(_ context.Context, _ *stage) (string, error) {
	return "dir " + d.path + " " + d.owner, nil
}

func (d *makeDir) do(ctx context.Context, s *stage) error {
	missing, err := s.missing(ctx, d.path)
	if err != nil || missing == "" {
		return err
	}
	owner, err := s.owner(ctx, d.owner)
	if err != nil {
		return err
	}
	return s.makeDirs(ctx, missing, d.path, owner)
}

// makeDir makes a directory and those above it for root.
func (s *stage) makeDir(ctx context.Context, name string) error {
	missing, err := s.missing(ctx, name)
	if err != nil || missing == "" {
		return err
	}
	return s.makeDirs(ctx, missing, name, ids{})
}

// makeDirs makes a directory and those above it from first on.
func (s *stage) makeDirs(ctx context.Context, first, name string, owner ids) error {
	top := path.Dir(first)
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	below := strings.TrimPrefix(strings.TrimPrefix(name, top), "/")
	parts := strings.Split(below, "/")
	for i := range parts {
		h := tar.Header{Typeflag: tar.TypeDir, Name: path.Join(parts[:i+1]...) + "/", Mode: 0o755, Uid: owner.uid, Gid: owner.gid}
		if err := w.WriteHeader(&h); err != nil {
			return fmt.Errorf("pack %s: %w", name, err)
		}
	}
	if err := w.Close(); err != nil {
		return fmt.Errorf("pack %s: %w", name, err)
	}
	return s.sandbox.Unpack(ctx, top, &b)
}

// ids are an owner of files.
type ids struct{ uid, gid int }

// owner resolves "user", "user:group" and numbers with the files of the sandbox.
func (s *stage) owner(ctx context.Context, text string) (ids, error) {
	if text == "" {
		return ids{}, nil
	}
	if s.sandbox.Traits().OneOwner {
		s.warn("the owner %s is not kept: the files in sandboxes of a daemon without root belong to one user", text)
		return ids{}, nil
	}
	user, group, both := strings.Cut(text, ":")
	out := ids{uid: -1, gid: -1}
	if n, err := strconv.ParseUint(user, 10, 31); err == nil {
		out.uid = int(n)
		out.gid = int(n)
	}
	if out.uid < 0 {
		fields, err := s.entry(ctx, "/etc/passwd", user, 4)
		if err != nil {
			return ids{}, err
		}
		out.uid, out.gid = number(fields[2]), number(fields[3])
	}
	if !both {
		return out, out.check(text)
	}
	if n, err := strconv.ParseUint(group, 10, 31); err == nil {
		out.gid = int(n)
		return out, out.check(text)
	}
	fields, err := s.entry(ctx, "/etc/group", group, 3)
	if err != nil {
		return ids{}, err
	}
	out.gid = number(fields[2])
	return out, out.check(text)
}

func (i ids) check(text string) error {
	if i.uid < 0 || i.gid < 0 {
		return api.Invalid("dockerfile", "the owner %.60q has no valid number in the image", text)
	}
	return nil
}

func number(s string) int {
	n, err := strconv.ParseUint(s, 10, 31)
	if err != nil {
		return -1
	}
	return int(n)
}

// entry finds a name in a file such as /etc/passwd, with at least that many fields.
func (s *stage) entry(ctx context.Context, file, name string, fields int) ([]string, error) {
	data, err := s.sandbox.ReadFile(ctx, file)
	if err != nil && api.CodeOf(err) != api.CodeNotFound {
		return nil, err
	}
	for line := range strings.Lines(string(data)) {
		if f := strings.Split(strings.TrimRight(line, "\n"), ":"); len(f) >= fields && f[0] == name {
			return f, nil
		}
	}
	return nil, api.Invalid("dockerfile", "the image has no %.60q in %s", name, file)
}
