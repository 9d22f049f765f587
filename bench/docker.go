//go:build linux

package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
)

// docker is a Docker daemon of the bench's own: own data, own socket, no bridge
// and no firewall rules, so the machine is left as it was.
type docker struct {
	client string
	host   string
}

// dockerImage is made from the same files as the EROFS image.
const dockerImage = "cloche-bench:latest"

// dockerHost is where the daemon listens.
func dockerHost(b *bench) string { return "unix://" + filepath.Join(b.dir, "docker.sock") }

func newDocker(ctx context.Context, b *bench, program []byte) (*docker, error) {
	daemon, err := exec.LookPath("dockerd")
	if err != nil {
		return nil, errors.New("dockerd is not installed (package docker.io, or -install)")
	}
	if os.Geteuid() != 0 {
		return nil, errors.New("a Docker daemon needs root")
	}
	d := &docker{client: filepath.Join(filepath.Dir(daemon), "docker"), host: dockerHost(b)}
	if strings.HasSuffix(filepath.Dir(daemon), "/sbin") {
		d.client = "/usr/bin/docker" // of the same package
	}
	dir := filepath.Join(b.dir, "docker")
	cmd := command(context.WithoutCancel(ctx), daemon, "--data-root", filepath.Join(dir, "data"), "--exec-root", filepath.Join(dir, "exec"),
		"--pidfile", filepath.Join(b.dir, "docker.pid"), "--host", d.host, "--add-runtime", "runsc="+runscPath(b), "--iptables=false", "--ip6tables=false", "--bridge=none", "--cgroup-parent", "/"+cgroupParent)
	if err := startAndWait(cmd, "API listen on", b); err != nil {
		return nil, fmt.Errorf("start dockerd: %w", err)
	}
	var image bytes.Buffer
	if err := writeTar(&image, program); err != nil {
		return nil, err
	}
	imp := command(ctx, d.argv("import", "-", dockerImage)...)
	imp.Stdin = &image
	if out, err := imp.CombinedOutput(); err != nil {
		return nil, fmt.Errorf("docker import: %w: %s", err, tail(string(out)))
	}
	about, err := output(ctx, d.argv("info", "--format", "{{.ServerVersion}}, {{.Driver}}, {{.DefaultRuntime}}, cgroup v{{.CgroupVersion}}")...)
	if err != nil {
		return nil, err
	}
	lines := strings.Split(strings.TrimSpace(about), "\n")
	b.report.Machine.Peers["docker"] = lines[len(lines)-1]
	return d, nil
}

func (d *docker) argv(args ...string) []string {
	return append([]string{d.client, "--host", d.host}, args...)
}

// limits are the flags that every container gets.
func (d *docker) limits(workspace string) []string {
	return []string{
		"--network=none", "--memory=" + strconv.Itoa(limitMemory), "--cpus=" + strconv.Itoa(limitCPUs), "--pids-limit=" + strconv.Itoa(limitPids),
		"--volume=" + workspace + ":/workspace",
	}
}

func (d *docker) run(ctx context.Context, workspace, want string, argv ...string) (measure, error) {
	args := append([]string{"run", "--rm"}, d.limits(workspace)...)
	return process(ctx, want, nil, d.argv(append(append(args, dockerImage), argv...)...)...)
}

// detached starts a container that sleeps, and returns its id.
func (d *docker) detached(ctx context.Context, workspace string) (string, error) {
	args := append([]string{"run", "--detach"}, d.limits(workspace)...)
	out, err := command(ctx, d.argv(append(args, dockerImage, "/bin/sleep", "100000")...)...).Output()
	if err != nil {
		return "", fmt.Errorf("docker run --detach: %w", err)
	}
	return strings.TrimSpace(string(out)), nil
}

func (d *docker) remove(ctx context.Context, id string) error {
	_, err := output(ctx, d.argv("rm", "--force", id)...)
	return err
}

// startAndWait starts a daemon, waits until it says ready on standard error, and
// has it ended with the bench.
func startAndWait(cmd *exec.Cmd, ready string, b *bench) error {
	r, w, err := os.Pipe()
	if err != nil {
		return err
	}
	cmd.Stderr = w
	err = cmd.Start()
	w.Close()
	if err != nil {
		r.Close()
		return err
	}
	listens, ended := make(chan struct{}), make(chan struct{})
	var said []string
	go func() {
		defer close(ended)
		defer r.Close()
		s := bufio.NewScanner(r)
		for waiting := true; waiting && s.Scan(); {
			said = append(said, s.Text())
			if strings.Contains(s.Text(), ready) {
				close(listens)
				waiting = false
			}
		}
		_, _ = io.Copy(io.Discard, r) // so that it never has to wait for us
	}()
	select {
	case <-listens:
	case <-ended:
		err := cmd.Wait()
		return fmt.Errorf("it ended before it was ready: %w: %s", err, tail(strings.Join(said, "\n")))
	}
	b.defers(func() error {
		if err := cmd.Process.Signal(os.Interrupt); err != nil && !errors.Is(err, os.ErrProcessDone) {
			return fmt.Errorf("stop %s: %w", filepath.Base(cmd.Path), err)
		}
		_ = cmd.Wait() // how it ends is its own affair
		<-ended
		return nil
	})
	return nil
}
