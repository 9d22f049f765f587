//go:build linux

package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/client"
)

// app is the product: its daemon, and its command line without one.
type app struct {
	bin       string
	home      string // of the daemon
	runHome   string // of runs without a daemon
	workspace string
	pid       int // of the daemon
	client    *client.Client
	// onStep, where it is set, is told how long each step of a run's create took.
	onStep func(step string, took time.Duration)
}

func newApp(ctx context.Context, b *bench) (*app, error) {
	return newAppIn(ctx, b, b.bin, b.dir)
}

// settingPrefix begins the settings among the flags of newAppIn, which are variables of the daemon's environment.
const settingPrefix = "CLOCHE__"

// newAppIn is a daemon of the executable bin with its home and socket in dir.
func newAppIn(ctx context.Context, b *bench, bin, dir string, flags ...string) (*app, error) {
	h := &app{
		bin: bin, home: filepath.Join(dir, "home"), runHome: filepath.Join(dir, "run-home"), workspace: filepath.Join(dir, "workspace"),
	}
	if err := os.Mkdir(h.workspace, 0o755); err != nil {
		return nil, fmt.Errorf("make workspace: %w", err)
	}
	if err := os.Mkdir(h.home, 0o700); err != nil {
		return nil, fmt.Errorf("make home: %w", err)
	}
	if err := os.WriteFile(filepath.Join(h.home, "policy.yaml"), []byte(egressPolicy), 0o600); err != nil {
		return nil, fmt.Errorf("write policy: %w", err)
	}
	// It looks there when it is asked for that engine.
	if err := os.WriteFile(filepath.Join(h.home, "settings.yaml"), fmt.Appendf(nil, "docker: {host: '%s'}\n", dockerHost(b)), 0o600); err != nil {
		return nil, fmt.Errorf("write settings: %w", err)
	}
	socket := "unix://" + filepath.Join(dir, "cloche.sock")
	settings := slices.DeleteFunc(slices.Clone(flags), func(f string) bool { return !strings.HasPrefix(f, settingPrefix) })
	flags = slices.DeleteFunc(slices.Clone(flags), func(f string) bool { return strings.HasPrefix(f, settingPrefix) })
	cmd := command(context.WithoutCancel(ctx), append([]string{h.bin, "serve", "--home", h.home, "--listen", socket}, flags...)...)
	if len(settings) > 0 {
		cmd.Env = append(os.Environ(), settings...)
	}
	if err := startAndWait(cmd, "msg=serving", b); err != nil {
		return nil, fmt.Errorf("start the daemon: %w", err)
	}
	h.pid = cmd.Process.Pid
	var err error
	if h.client, err = client.New(client.Options{Host: socket}); err != nil {
		return nil, err
	}
	b.defers(h.client.Close)
	return h, nil
}

func (h *app) spec() api.SandboxSpec {
	return api.SandboxSpec{
		Workspace: &api.Workspace{Dir: h.workspace},
		Limits:    api.Limits{CPUs: limitCPUs, MemoryBytes: limitMemory, Pids: limitPids},
	}
}

// run is one call over the daemon's socket: create, run, remove.
func (h *app) run(ctx context.Context, want string, argv ...string) (measure, error) {
	return h.runSpec(ctx, h.spec(), want, argv...)
}

// runSpec is run with a sandbox of another spec.
func (h *app) runSpec(ctx context.Context, spec api.SandboxSpec, want string, argv ...string) (measure, error) {
	var m measure
	step, last := "", time.Now()
	note := func(next string) {
		if h.onStep != nil && step != "" {
			h.onStep(step, time.Since(last))
		}
		step, last = next, time.Now()
	}
	began := time.Now()
	s, err := h.client.RunStream(ctx, api.RunRequest{Spec: spec, Exec: api.ExecRequest{Argv: argv}}, note)
	if err != nil {
		return m, err
	}
	defer s.Close()
	// The daemon tells no step between its last one and the program's start.
	step += " and start of the program"
	note("first output")
	out := ""
	for {
		ev, err := s.Recv()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return m, err
		}
		if ev.Exit != nil && !ev.Exit.OK() {
			return m, fmt.Errorf("the program ended with status %d", ev.Exit.ExitStatus())
		}
		if out == "" && len(ev.Data) > 0 {
			m.First = time.Since(began)
			note("exit and removal")
		}
		out += string(ev.Data)
	}
	m.Total = time.Since(began)
	note("")
	if out != want {
		return m, fmt.Errorf("the sandbox wrote %q, want %q", tail(out), want)
	}
	return m, nil
}

// cli is `cloche run` as a whole process, without a daemon.
func (h *app) cli(ctx context.Context, want string, argv ...string) (measure, error) {
	args := []string{
		h.bin, "run", "--quiet", "--home", h.runHome, "--workspace", h.workspace, "--memory", strconv.Itoa(limitMemory),
		"--cpus", strconv.Itoa(limitCPUs), "--pids", strconv.Itoa(limitPids), "--",
	}
	return process(ctx, want, nil, append(args, argv...)...)
}

// env has the command line find the daemon.
func (h *app) env() []string {
	return []string{"CLOCHE_HOME=" + h.home, "CLOCHE_HOST=unix://" + filepath.Join(filepath.Dir(h.home), "cloche.sock")}
}

// execIdle is execTrue in a sandbox that had nothing to do for a while.
func (h *app) execIdle(ctx context.Context, sb *client.Sandbox) (measure, error) {
	time.Sleep(idle)
	return h.execTrue(ctx, sb, "/bin/true")
}

// cliExec is `cloche exec` as a whole process.
func (h *app) cliExec(ctx context.Context, sb *client.Sandbox) (measure, error) {
	return process(ctx, "", h.env(), h.bin, "exec", sb.ID, "--", "true")
}

// create makes a sandbox that stays until it is removed.
func (h *app) create(ctx context.Context) (*client.Sandbox, error) {
	return h.client.Create(ctx, h.spec())
}

// createOn is create on an engine that is not the usual one.
func (h *app) createOn(ctx context.Context, engine string) (*client.Sandbox, error) {
	spec := h.spec()
	spec.Engine = engine
	return h.client.Create(ctx, spec)
}

// execTrue is the round trip of a collected exec.
func (h *app) execTrue(ctx context.Context, sb *client.Sandbox, argv ...string) (measure, error) {
	began := time.Now()
	res, err := sb.Exec(ctx, argv...)
	took := time.Since(began)
	if err == nil && !res.OK() {
		err = fmt.Errorf("true ended with status %d", res.ExitStatus())
	}
	return measure{Total: took}, err
}

// spawnInside is what a program costs that another inside starts.
func (h *app) spawnInside(ctx context.Context, sb *client.Sandbox) (measure, error) {
	res, err := sb.Exec(ctx, "python3", "-c", spawnInside)
	if err != nil {
		return measure{}, err
	}
	return printedMS(string(res.Stdout))
}

// printedMS is a time that a program printed in ms.
func printedMS(text string) (measure, error) {
	ms, err := strconv.ParseFloat(strings.TrimSpace(text), 64)
	if err != nil {
		return measure{}, fmt.Errorf("read the time that a program printed: %w", err)
	}
	return measure{Total: time.Duration(ms * float64(time.Millisecond))}, nil
}

// hostImage is the image host as the daemon made it: what a peer needs in order
// to run from the same root with the same binds.
type hostImage struct {
	Image  string
	Mounts []struct{ Source, Target string }
	Masks  []string
}

// hostImage is known after the first sandbox.
func (h *app) hostImage() (hostImage, error) {
	records, err := filepath.Glob(filepath.Join(h.home, "images", "host*.json"))
	if err != nil || len(records) == 0 {
		return hostImage{}, errors.Join(errors.New("find the daemon's image host: no record"), err)
	}
	data, err := os.ReadFile(records[0])
	if err != nil {
		return hostImage{}, fmt.Errorf("read the daemon's image host: %w", err)
	}
	var r struct {
		Rootfs hostImage `json:"rootfs"`
	}
	if err := json.Unmarshal(data, &r); err != nil {
		return hostImage{}, fmt.Errorf("read the daemon's image host: %w", err)
	}
	if r.Rootfs.Image == "" || len(r.Rootfs.Mounts) == 0 {
		return hostImage{}, errors.New("the daemon's image host has no image or no mounts")
	}
	return r.Rootfs, nil
}

// residentMB is VmRSS in the text of a /proc/PID/status, in 10⁶ bytes.
func residentMB(status string) (float64, error) {
	for line := range strings.Lines(status) {
		if v, ok := strings.CutPrefix(line, "VmRSS:"); ok {
			kib, err := strconv.ParseInt(strings.TrimSuffix(strings.TrimSpace(v), " kB"), 10, 64)
			return float64(kib) * 1024 / 1e6, err
		}
	}
	return 0, errors.New("no VmRSS in the agent's status")
}
