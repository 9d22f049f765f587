//go:build linux

package docker_test

import (
	"context"
	"net"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/client"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/engine"
	"github.com/cloche-dev/cloche/internal/engine/docker"
	"github.com/cloche-dev/cloche/internal/engine/docker/dockertest"
	"github.com/cloche-dev/cloche/internal/engine/enginetest"
)

// patience bounds each wait.
const patience = time.Minute

func plan(t testing.TB, im enginetest.Images) engine.Plan {
	p := enginetest.Plan(t, im)
	p.Limits.DiskBytes = 0
	return p
}

// TestFaults takes the daemon away in the middle, and the container too.
func TestFaults(t *testing.T) {
	d := start(t, dockertest.Docker)
	buildInner(t)
	images := enginetest.BuildImages(t, t.TempDir())
	e := newEngine(t, docker.Docker, d.Host)
	ctx, cancel := context.WithTimeout(t.Context(), 4*patience)
	defer cancel()
	create := func(t *testing.T) engine.Instance {
		t.Helper()
		i, err := e.Create(ctx, plan(t, images))
		if err != nil {
			t.Fatalf("create: %v (%v)", err, err.(*api.Error).Unwrap())
		}
		t.Cleanup(func() {
			if err := i.Close(context.WithoutCancel(ctx)); err != nil {
				t.Errorf("close: %v", err)
			}
		})
		return i
	}
	ended := func(t *testing.T, i engine.Instance) {
		t.Helper()
		select {
		case <-i.Done():
		case <-time.After(patience):
			t.Fatal("Done is not closed although the container is gone")
		}
	}

	t.Run("removed by hand", func(t *testing.T) {
		i := create(t)
		if _, err := d.Client.ContainerRemove(ctx, containerOf(t, i), client.ContainerRemoveOptions{Force: true}); err != nil {
			t.Fatal(err)
		}
		ended(t, i)
		_, err := i.Dial(ctx)
		want(t, "dial", err, api.CodeSandboxLost)
		_, err = e.Recover(ctx, i.State())
		want(t, "recover", err, api.CodeNotFound)
	})

	t.Run("others are not touched", func(t *testing.T) {
		i := create(t)
		// It has the owner's label, and is no sandbox.
		other, err := d.Client.ContainerCreate(ctx, client.ContainerCreateOptions{Name: "somebody-elses", Config: &container.Config{
			Image: imageOf(t, d, i), Cmd: []string{"/x"}, Labels: map[string]string{"dev.cloche.owner": "enginetest"},
		}})
		if err != nil {
			t.Fatal(err)
		}
		if err := e.Sweep(ctx, "enginetest", nil); err != nil {
			t.Fatal(err)
		}
		ended(t, i)
		if _, err := d.Client.ContainerRemove(ctx, other.ID, client.ContainerRemoveOptions{}); err != nil {
			t.Errorf("somebody else's container: %v", err)
		}
	})

	t.Run("hardened", func(t *testing.T) {
		i := create(t)
		answer, err := d.Client.ContainerInspect(ctx, containerOf(t, i), client.ContainerInspectOptions{})
		if err != nil {
			t.Fatal(err)
		}
		h := answer.Container.HostConfig
		if h.Privileged || len(h.CapAdd) > 12 || h.NetworkMode != "none" || h.PidMode != "" || h.Memory == 0 || h.PidsLimit == nil {
			t.Errorf("the container is not what it should be: %+v", h)
		}
		if b := strings.ToLower(string(answer.Raw)); strings.Contains(b, "docker.sock") || strings.Contains(b, `"port\"`) {
			t.Errorf("the container has the daemon's socket or shows the agent's configuration: %s", b)
		}
	})

	t.Run("a runtime that the daemon does not have", func(t *testing.T) {
		kata, err := docker.New(docker.Options{Name: docker.Docker, Hosts: []string{d.Host}, Inner: innerProgram, Runtime: "kata", RuntimeTier: api.TierMicroVM})
		if err != nil {
			t.Fatal(err)
		}
		defer kata.Close()
		if r := kata.Probe(ctx); r.Usable || len(r.Problems) == 0 || !strings.Contains(r.Problems[0].What, "no runtime kata") || r.Problems[0].Mend == "" {
			t.Errorf("probe: %+v", r)
		}
		p := plan(t, images)
		_, err = kata.Create(ctx, p)
		want(t, "create", err, api.CodeUnavailable)
		if err == nil || !strings.Contains(err.Error(), "no runtime kata") {
			t.Errorf("create says %v", err)
		}
		for _, what := range d.left(t, p) {
			t.Errorf("left: %s", what)
		}
	})

	t.Run("agents of other versions", func(t *testing.T) {
		agents := func() int {
			t.Helper()
			list, err := d.Client.VolumeList(ctx, client.VolumeListOptions{Filters: make(client.Filters).Add("label", "dev.cloche.agent")})
			if err != nil {
				t.Fatal(err)
			}
			return len(list.Items)
		}
		// What is behind a program's end changes what it is, and not what it does.
		version := func(n int) *docker.Engine {
			t.Helper()
			e, err := docker.New(docker.Options{Name: docker.Docker, Hosts: []string{d.Host}, Inner: func() ([]byte, error) {
				b, err := innerProgram()
				return append(b, make([]byte, n)...), err
			}})
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { e.Close() })
			return e
		}
		old := version(1)
		i, err := old.Create(ctx, plan(t, images))
		if err != nil {
			t.Fatal(err)
		}
		closed := false
		defer func() {
			if !closed {
				i.Close(context.WithoutCancel(ctx))
			}
		}()
		once := func(e *docker.Engine) {
			t.Helper()
			j, err := e.Create(ctx, plan(t, images))
			if err != nil {
				t.Fatal(err)
			}
			if err := j.Close(ctx); err != nil {
				t.Fatal(err)
			}
		}
		once(version(2))
		if n := agents(); n != 2 {
			t.Errorf("%d agents are kept, want the new one and the one that is in use", n)
		}
		if err := enginetest.Echo(ctx, i, "still there"); err != nil {
			t.Errorf("the sandbox whose agent is old: %v", err)
		}
		if err := i.Close(ctx); err != nil {
			t.Fatal(err)
		}
		closed = true
		once(version(3))
		if n := agents(); n != 1 {
			t.Errorf("%d agents are kept, want the new one alone", n)
		}
		once(old) // which thinks that it has its own still
	})

	t.Run("the daemon is gone", func(t *testing.T) {
		i := create(t)
		if err := enginetest.Echo(ctx, i, "before"); err != nil {
			t.Fatal(err)
		}
		d.Kill()
		_, err := e.Create(ctx, plan(t, images))
		want(t, "create without a daemon", err, api.CodeUnavailable)
		_, err = i.Dial(ctx)
		want(t, "dial without a daemon", err, api.CodeUnavailable)
		_, err = e.Recover(ctx, i.State())
		want(t, "recover without a daemon", err, api.CodeUnavailable)
		if err := i.Close(ctx); err == nil || !err.(*api.Error).Retryable {
			t.Errorf("close without a daemon: %v", err)
		}
		if r := e.Probe(ctx); r.Usable || len(r.Problems) == 0 || r.Problems[0].Mend == "" {
			t.Errorf("probe without a daemon: %+v", r)
		}
		select {
		case <-i.Done():
			t.Error("a container is called dead because its daemon is")
		default:
		}
		if err := d.Start(); err != nil {
			t.Fatal(err)
		}
		if r := e.Probe(ctx); !r.Usable {
			t.Errorf("probe of a daemon that is back: %+v", r)
		}
		create(t)
	})

	t.Run("the daemon goes while a sandbox is made", func(t *testing.T) {
		for _, after := range []time.Duration{5 * time.Millisecond, 100 * time.Millisecond, 300 * time.Millisecond} {
			p := plan(t, images)
			gone := make(chan struct{})
			timer := time.AfterFunc(after, func() { defer close(gone); d.Kill() })
			i, err := e.Create(ctx, p)
			if timer.Stop() {
				d.Kill()
			} else {
				<-gone
			}
			if code := api.CodeOf(err); err != nil && code != api.CodeUnavailable && code != api.CodeInternal {
				t.Errorf("create while the daemon goes: %v", err)
			}
			if err := d.Start(); err != nil {
				t.Fatal(err)
			}
			if i != nil {
				if err := i.Close(ctx); err != nil {
					t.Errorf("close: %v", err)
				}
			}
			// What could not be taken back then is taken away now.
			if err := e.Sweep(ctx, p.Owner, nil); err != nil {
				t.Fatal(err)
			}
			for _, what := range d.left(t, p) {
				t.Errorf("left: %s", what)
			}
		}
	})

	t.Run("the daemon hangs", func(t *testing.T) {
		if err := d.Hang(); err != nil {
			t.Fatal(err)
		}
		defer func() {
			if err := d.Wake(); err != nil {
				t.Error(err)
			}
		}()
		short, cancel := context.WithTimeout(ctx, time.Second)
		defer cancel()
		if r := e.Probe(short); r.Usable {
			t.Error("a daemon that hangs is usable")
		}
		_, err := e.Create(short, plan(t, images))
		want(t, "create", err, api.CodeTimeout)
	})
}

func containerOf(t testing.TB, i engine.Instance) string { return containerIn(t, i.State()) }

func imageOf(t testing.TB, d daemon, i engine.Instance) string {
	t.Helper()
	answer, err := d.Client.ContainerInspect(t.Context(), containerOf(t, i), client.ContainerInspectOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return answer.Container.Image
}

func want(t testing.TB, what string, err error, code api.Code) {
	t.Helper()
	if api.CodeOf(err) != code {
		t.Errorf("%s: %v has the code %q, want %q", what, err, api.CodeOf(err), code)
	}
}

// TestHosts: a daemon that is named is the only one that is looked for.
func TestHosts(t *testing.T) {
	env := map[string]string{"XDG_RUNTIME_DIR": "/run/user/7", "HOME": "/home/u"}
	for _, test := range []struct{ name, chosen, want string }{
		{docker.Docker, "tcp://10.0.0.1:2376", "tcp://10.0.0.1:2376"},
		{docker.Docker, "", "unix:///run/user/7/docker.sock unix:///home/u/.docker/run/docker.sock unix:///var/run/docker.sock"},
		{docker.Podman, "", "unix:///run/user/7/podman/podman.sock unix:///run/podman/podman.sock"},
	} {
		if got := strings.Join(docker.Hosts(test.name, test.chosen, func(k string) string { return env[k] }), " "); got != test.want {
			t.Errorf("%s %q: %s, want %s", test.name, test.chosen, got, test.want)
		}
	}
}

// TestProbeSaysWhatToDo about each host that cannot be used.
func TestProbeSaysWhatToDo(t *testing.T) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	closed := ln.Addr().String()
	ln.Close()
	for host, says := range map[string]string{
		"unix://" + filepath.Join(t.TempDir(), "no.sock"): "there is no such socket",
		"tcp://192.0.2.1:2375":                            "without TLS",
		"tcp://" + closed:                                 "does not answer",
		"ssh://somebody@192.0.2.1":                        "does not speak SSH",
		"gopher://x":                                      "scheme",
		"%":                                               "no URL",
	} {
		r := newEngine(t, docker.Docker, host).Probe(t.Context())
		text := ""
		for _, p := range r.Problems {
			text += p.What + "; "
		}
		if r.Usable || !strings.Contains(text, says) || r.Problems[0].Mend == "" {
			t.Errorf("%s: %+v", host, r)
		}
	}
}
