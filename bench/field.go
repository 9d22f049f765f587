//go:build linux

package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	specs "github.com/opencontainers/runtime-spec/specs-go"

	"github.com/cloche-dev/cloche/api"
)

// The group field has every sandbox of this machine run the same two programs: one that prints a word, and a web
// application that holds 64 MiB and prints the status of its first answer. Both are static and lie in one mounted
// directory. Nothing has a network but a loopback.

const (
	// fieldAtOnce are started at the same time, and fieldHeld held at the same time.
	fieldAtOnce, fieldHeld = 20, 100
	// fieldBursts is how often all are started at once.
	fieldBursts = 3
	fieldWord   = "word\n"
	fieldStatus = "200\n"
)

// fieldRow is what one sandbox of the field takes.
type fieldRow struct {
	Name string `json:"name"`
	How  string `json:"how"`
	// ProgramMS and AppMS are from the start to the first output, AtOnceMS until the last of fieldAtOnce has answered.
	ProgramMS []float64 `json:"program_ms"`
	AppMS     []float64 `json:"app_ms"`
	AtOnceMS  []float64 `json:"at_once_ms"`
	// EachMB is what the machine has less for each of Held, in 10⁶ bytes.
	EachMB float64 `json:"each_mb"`
	Held   int     `json:"held"`
}

// contender is a kind of sandbox.
type contender struct {
	name, how string
	// start runs a program until its first line is want, and returns what ends it.
	start func(ctx context.Context, want string, argv ...string) (stop func() error, err error)
}

// fieldDir is where every sandbox has the programs.
const fieldDir = "/workspace"

func (b *bench) field(ctx context.Context) error {
	p, err := b.need(ctx)
	if err != nil {
		return err
	}
	dir := filepath.Join(b.dir, "field")
	if err := os.Mkdir(dir, 0o755); err != nil {
		return err
	}
	if err := b.goBuild(ctx, filepath.Join(dir, "webapp"), "./bench/webapp"); err != nil {
		return err
	}
	program, err := readBusybox()
	if err != nil {
		return err
	}
	root := filepath.Join(b.dir, "field-root")
	if err := errors.Join(writeTree(root, program), os.WriteFile(filepath.Join(dir, "echo"), program, 0o755)); err != nil {
		return err
	}
	all := b.contenders(ctx, p, root, dir)
	rows := make(map[string]*fieldRow)
	var subjects []subject
	for _, c := range all {
		row := &fieldRow{Name: c.name, How: c.how}
		rows[c.name] = row
		subjects = append(subjects, c.subject("program", &row.ProgramMS, fieldWord, fieldDir+"/echo", "word"), c.subject("app", &row.AppMS, fieldStatus, fieldDir+"/webapp"))
	}
	if _, err := rounds(ctx, b.n, subjects, b.missing); err != nil {
		return err
	}
	all = slices.DeleteFunc(all, func(c contender) bool { return min(len(rows[c.name].ProgramMS), len(rows[c.name].AppMS)) < warmups+b.n }) // it was dropped
	for range fieldBursts {
		for _, c := range all {
			if err := c.burst(ctx, rows[c.name]); err != nil {
				b.missing(c.name+", at once", err)
			}
		}
	}
	for _, c := range all {
		row := rows[c.name]
		if err := c.hold(ctx, row); err != nil {
			b.missing(c.name+", held", err)
		}
		row.ProgramMS, row.AppMS = row.ProgramMS[warmups:], row.AppMS[warmups:]
		b.report.Field = append(b.report.Field, *row)
	}
	return ctx.Err()
}

func (c contender) subject(what string, into *[]float64, want string, argv ...string) subject {
	return subject{name: "field, " + c.name + ", " + what, run: func(ctx context.Context) (measure, error) {
		took, stop, err := c.timed(ctx, want, argv...)
		if err != nil {
			return measure{}, err
		}
		*into = append(*into, float64(took.Microseconds())/1000)
		return measure{First: took}, stop()
	}}
}

func (c contender) timed(ctx context.Context, want string, argv ...string) (time.Duration, func() error, error) {
	began := time.Now()
	stop, err := c.start(ctx, want, argv...)
	return time.Since(began), stop, err
}

// burst starts all at the same time.
func (c contender) burst(ctx context.Context, row *fieldRow) error {
	stops := make([]func() error, fieldAtOnce)
	began := time.Now()
	err := together(fieldAtOnce, fieldAtOnce, func(i int) (err error) {
		stops[i], err = c.start(ctx, fieldStatus, fieldDir+"/webapp")
		return err
	})
	if err == nil {
		row.AtOnceMS = append(row.AtOnceMS, float64(time.Since(began).Microseconds())/1000)
	}
	return errors.Join(err, end(stops))
}

// hold weighs those that run at the same time.
func (c contender) hold(ctx context.Context, row *fieldRow) error {
	if err := wait(ctx, settle); err != nil { // what the one before had is given back
		return err
	}
	before := availableKiB()
	stops := make([]func() error, fieldHeld)
	err := together(fieldHeld, makers, func(i int) (err error) {
		stops[i], err = c.start(ctx, fieldStatus, fieldDir+"/webapp")
		return err
	})
	if err == nil {
		err = wait(ctx, settle)
		row.EachMB, row.Held = float64(before-availableKiB())*1024/1e6/fieldHeld, fieldHeld
	}
	return errors.Join(err, end(stops))
}

func end(stops []func() error) error {
	return together(len(stops), makers, func(i int) error {
		if stops[i] == nil {
			return nil
		}
		return stops[i]()
	})
}

// contenders are those that this machine has.
func (b *bench) contenders(ctx context.Context, p *peers, root, dir string) []contender {
	var all []contender
	var count atomic.Int64
	id := func() string { return fmt.Sprintf("field-%d-%d", os.Getpid(), count.Add(1)) }
	if p.app != nil {
		for _, engine := range []string{"gvisor", "native"} {
			all = append(all, contender{
				"cloche, " + engine, "one call over the unix socket, root `host`, the daemon's usual pool", p.app.fieldStart(engine, dir),
			})
		}
	}
	run := func(name, how string, argv ...string) {
		all = append(all, contender{name, how, func(ctx context.Context, want string, program ...string) (func() error, error) {
			return hold(ctx, want, slices.Concat(argv, program))
		}})
	}
	bundled := func(name, state, bin string, flags ...string) {
		if _, err := os.Stat(bin); err != nil {
			b.missing("field, "+name, err)
			return
		}
		all = append(all, contender{name, "`" + name + " run`", func(ctx context.Context, want string, program ...string) (func() error, error) {
			id := id()
			bundle, err := writeBundle(filepath.Join(b.dir, "field-bundles", id), "", specs.Root{Path: root, Readonly: true}, []specs.Mount{
				{Destination: fieldDir, Type: "bind", Source: dir, Options: []string{"rbind", "rw", "nosuid", "nodev"}},
			}, program, nil)
			if err != nil {
				return nil, err
			}
			return hold(ctx, want, slices.Concat([]string{bin, "--root", state}, flags, []string{"run", "--bundle", bundle, id}))
		}})
	}
	if p.docker != nil {
		for name, runtime := range map[string]string{"docker": "runc", "docker with runsc": "runsc"} {
			args := append([]string{"run", "--rm", "--interactive", "--runtime", runtime}, p.docker.limits(dir)...)
			run(name, "`docker run --rm`, overlay2", p.docker.argv(append(args, dockerImage)...)...)
		}
	}
	if p.runsc != nil {
		bundled("runsc", filepath.Join(p.runsc.dir, "state"), p.runsc.bin, "--platform=systrap", "--network=none")
	}
	bundled("runc", filepath.Join(b.dir, "field-runc"), "/usr/sbin/runc")
	bundled("crun", filepath.Join(b.dir, "field-crun"), "/usr/bin/crun", "--cgroup-manager=disabled") // it takes no hybrid hierarchy
	if p.bwrap != "" {
		run("bubblewrap", "every namespace, no limits, no filter", p.bwrap, "--unshare-all", "--die-with-parent", "--ro-bind", root, "/", "--bind", dir, fieldDir,
			"--proc", "/proc", "--dev", "/dev", "--tmpfs", "/tmp")
	}
	if bin := os.Getenv("NSJAIL"); bin != "" {
		run("nsjail", "every namespace, no limits", bin, "-Mo", "--really_quiet", "--chroot", root, "--bindmount", dir+":"+fieldDir, "--time_limit", "0", "--disable_rlimits", "--")
	} else {
		b.missing("field, nsjail", errors.New("NSJAIL names no executable"))
	}
	if srt, err := b.sandboxRuntime(ctx, dir); err != nil {
		b.missing("field, @anthropic-ai/sandbox-runtime", err)
	} else {
		all = append(all, srt)
	}
	return all
}

// fieldStart runs a program by the daemon.
func (h *app) fieldStart(engine, dir string) func(context.Context, string, ...string) (func() error, error) {
	return func(ctx context.Context, want string, argv ...string) (func() error, error) {
		spec := h.spec()
		spec.Engine, spec.Workspace = engine, &api.Workspace{Dir: dir}
		if len(argv) == 1 {
			argv = append(slices.Clip(argv), "stay") // it has no input
		}
		s, err := h.client.RunStream(context.WithoutCancel(ctx), api.RunRequest{Spec: spec, Exec: api.ExecRequest{Argv: argv}}, nil)
		if err != nil {
			return nil, err
		}
		out := ""
		for out != want {
			ev, err := s.Recv()
			if err != nil || len(out) > len(want) {
				return nil, errors.Join(fmt.Errorf("it wrote %q, want %q", tail(out), want), err, s.Close())
			}
			out += string(ev.Data)
		}
		return s.Close, nil
	}
}

// hold starts a process, and returns when its first line is want. It ends when its standard input does.
func hold(ctx context.Context, want string, argv []string) (func() error, error) {
	cmd := command(context.WithoutCancel(ctx), argv...)
	in, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	var said strings.Builder
	cmd.Stderr = &said
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	stop := func() error {
		_ = in.Close()
		_, _ = io.Copy(io.Discard, out)
		return cmd.Wait()
	}
	late := time.AfterFunc(runLimit, func() { _ = cmd.Process.Kill() })
	line, err := bufio.NewReader(out).ReadString('\n')
	late.Stop()
	if line != want {
		werr := stop()
		return nil, fmt.Errorf("%s wrote %q, want %q: %w: %s", filepath.Base(argv[0]), tail(line), want, errors.Join(err, werr), tail(said.String()))
	}
	return stop, nil
}

// sandboxRuntime installs Anthropic's sandbox runtime. Its sandboxes have the host's root.
func (b *bench) sandboxRuntime(ctx context.Context, dir string) (contender, error) {
	npm, err := exec.LookPath("npm")
	if err != nil {
		return contender{}, errors.New("npm is not installed")
	}
	at := filepath.Join(b.dir, "field-srt")
	if _, err := output(ctx, npm, "install", "--silent", "--no-audit", "--no-fund", "--prefix", at, "@anthropic-ai/sandbox-runtime"); err != nil {
		return contender{}, err
	}
	settings := filepath.Join(at, "settings.json")
	if err := os.WriteFile(settings, []byte(`{"network":{"allowedDomains":[],"deniedDomains":[]},"filesystem":{"denyRead":[],"allowWrite":["/tmp"],"denyWrite":[]}}`), 0o644); err != nil {
		return contender{}, err
	}
	bin := filepath.Join(at, "node_modules", ".bin", "srt")
	return contender{"sandbox-runtime", "`srt`, bubblewrap below a Node program, the host's own root", func(ctx context.Context, want string, argv ...string) (func() error, error) {
		return hold(ctx, want, append([]string{bin, "--settings", settings, filepath.Join(dir, filepath.Base(argv[0]))}, argv[1:]...))
	}}, nil
}
