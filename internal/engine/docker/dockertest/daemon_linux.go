package dockertest

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/moby/moby/client"
	"golang.org/x/sys/unix"
)

// patience bounds each wait for a daemon.
const patience = time.Minute

// ErrAbsent is the error where a daemon cannot be started, and says what is missing.
var ErrAbsent = errors.New("no such daemon can be started here")

// Daemon is a daemon of a test's own.
type Daemon struct {
	// Host is where it listens.
	Host string
	// Client talks to it.
	Client *client.Client

	dir   string
	args  []string
	ready string
	cmd   *exec.Cmd
	wg    sync.WaitGroup
	// below is what a Docker daemon has its containers run by; nil for Podman.
	below *Daemon
	// remote is nil for one that is talked to at its socket alone.
	remote *forwarder
}

// Docker starts a Docker daemon with its own data and socket, no bridge and no
// firewall rules, so that the machine is left as it was. It has a containerd that is
// started apart: one of its own hangs for long when the daemon that was killed comes
// back.
func Docker() (*Daemon, error) {
	if err := Can("dockerd"); err != nil {
		return nil, err
	}
	below, err := begin("containerd", "containerd successfully booted", func(program, dir, host string) ([]string, error) {
		file := filepath.Join(dir, "config.toml")
		return []string{program, "--config", file}, os.WriteFile(file, fmt.Appendf(nil, containerdConfig, dir, strings.TrimPrefix(host, "unix://")), 0o600)
	})
	if err != nil {
		return nil, err
	}
	d, err := begin("dockerd", "API listen on", func(program, dir, host string) ([]string, error) {
		return []string{
			program, "--data-root", filepath.Join(dir, "data"), "--exec-root", filepath.Join(dir, "exec"), "--pidfile", filepath.Join(dir, "pid"),
			"--containerd", strings.TrimPrefix(below.Host, "unix://"),
			"--iptables=false", "--ip6tables=false", "--bridge=none", "--host", host,
		}, nil
	})
	if err != nil {
		return nil, errors.Join(err, below.Close())
	}
	d.below = below
	return d.talk()
}

// containerdConfig has a directory and a socket, and none of the parts that Docker
// does not use.
const containerdConfig = `version = 2
root = "%[1]s/root"
state = "%[1]s/state"
disabled_plugins = ["io.containerd.grpc.v1.cri", "io.containerd.internal.v1.opt"]
[grpc]
address = "%[2]s"
`

// Podman starts a Podman service in the same way. Its runtime is runc: crun runs
// nothing where both versions of cgroups are mounted.
func Podman() (*Daemon, error) {
	d, err := begin("podman", "API service listening on", func(program, dir, host string) ([]string, error) {
		file := filepath.Join(dir, "containers.conf")
		if err := os.WriteFile(file, []byte(podmanConfig), 0o600); err != nil {
			return nil, err
		}
		return []string{
			"/usr/bin/env", "CONTAINERS_CONF=" + file, program, "--root", filepath.Join(dir, "data"), "--runroot", filepath.Join(dir, "run"), "--tmpdir", filepath.Join(dir, "tmp"),
			"--runtime=runc", "--cgroup-manager=cgroupfs", "--events-backend=file", "--log-level=info",
			"system", "service", "--time=0", host,
		}, nil
	})
	if err != nil {
		return nil, err
	}
	return d.talk()
}

// podmanConfig makes the monitor of an exec end with the exec. By default it stays for five
// minutes, so that a client can ask how the exec ended.
const podmanConfig = "[engine]\nexit_command_delay = 0\n"

// talk makes the client of a daemon that listens.
func (d *Daemon) talk() (*Daemon, error) {
	var err error
	if d.Client, err = client.New(client.WithHost(d.Host)); err != nil {
		return nil, errors.Join(err, d.Close())
	}
	return d, nil
}

// Can says whether a program of that name could be started as a daemon here.
func Can(program string) error {
	if os.Geteuid() != 0 {
		return fmt.Errorf("%w: it needs root", ErrAbsent)
	}
	if _, err := exec.LookPath(program); err != nil {
		return fmt.Errorf("%w: %s is not installed", ErrAbsent, program)
	}
	return nil
}

func begin(program, ready string, args func(program, dir, host string) ([]string, error)) (*Daemon, error) {
	if err := Can(program); err != nil {
		return nil, err
	}
	path, err := exec.LookPath(program)
	if err != nil {
		return nil, err
	}
	dir, err := os.MkdirTemp("", "dock") // short enough for a socket in it
	if err != nil {
		return nil, err
	}
	d := &Daemon{Host: "unix://" + filepath.Join(dir, "sock"), dir: dir, ready: ready}
	if d.args, err = args(path, dir, d.Host); err != nil {
		return nil, errors.Join(err, d.Close())
	}
	if err := d.Start(); err != nil {
		return nil, errors.Join(err, d.Close())
	}
	return d, nil
}

// tries are how often a daemon is started that ends before it listens: on a machine
// that is busy it gives up on its own parts too soon.
const tries = 4

// Start starts the daemon, again after Stop or Kill, and waits until it says that it
// listens.
func (d *Daemon) Start() error {
	for n := 1; ; n++ {
		err := d.start()
		if err == nil || n == tries {
			return err
		}
		d.Kill()
	}
}

func (d *Daemon) start() error {
	cmd := exec.Command(d.args[0], d.args[1:]...)
	r, w, err := os.Pipe()
	if err != nil {
		return err
	}
	cmd.Stderr, cmd.Stdout = w, w
	err = cmd.Start()
	w.Close()
	if err != nil {
		r.Close()
		return fmt.Errorf("%w: %w", ErrAbsent, err)
	}
	d.cmd = cmd
	listens := make(chan string, 1)
	d.wg.Go(func() {
		defer r.Close()
		var said []string
		for s := bufio.NewScanner(r); s.Scan(); {
			said = append(said, s.Text())
			if strings.Contains(s.Text(), d.ready) {
				listens <- ""
				_, _ = io.Copy(io.Discard, r) // so that it never has to wait for us
				return
			}
		}
		listens <- "it ended: " + strings.Join(said[max(0, len(said)-5):], "\n")
	})
	select {
	case failure := <-listens:
		if failure != "" {
			return fmt.Errorf("%w: %s", ErrAbsent, failure)
		}
		return nil
	case <-time.After(patience):
		return errors.New("the daemon does not listen in time")
	}
}

// Stop ends the daemon as a manager of services does.
func (d *Daemon) Stop() { d.signal(unix.SIGTERM) }

// Kill takes the daemon away at once. What it runs goes on.
func (d *Daemon) Kill() { d.signal(unix.SIGKILL) }

func (d *Daemon) signal(sig unix.Signal) {
	if d.cmd == nil {
		return
	}
	_ = d.cmd.Process.Signal(sig)
	_ = d.cmd.Wait() // how it ends is its own affair
	d.wg.Wait()
	d.cmd = nil
}

// Hang stops the daemon where it is, and Wake lets it go on.
func (d *Daemon) Hang() error { return d.cmd.Process.Signal(unix.SIGSTOP) }

// Wake lets a daemon go on that hangs.
func (d *Daemon) Wake() error { return d.cmd.Process.Signal(unix.SIGCONT) }

// Close removes what the daemon runs, ends it, and takes away what it leaves.
func (d *Daemon) Close() error {
	if d.remote != nil {
		d.remote.close()
	}
	if d.cmd == nil && d.Client != nil {
		_ = d.Start() // to remove what it ran
	}
	if d.cmd != nil && d.Client != nil {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		if list, err := d.Client.ContainerList(ctx, client.ContainerListOptions{All: true}); err == nil {
			for _, c := range list.Items {
				_, _ = d.Client.ContainerRemove(ctx, c.ID, client.ContainerRemoveOptions{Force: true, RemoveVolumes: true})
			}
		}
	}
	d.Stop()
	if d.below != nil {
		defer d.below.Close()
	}
	// What tends the end of Podman's last exec is on its way still, and mounts once more.
	for late := time.Now().Add(patience); ; time.Sleep(100 * time.Millisecond) {
		if err := d.remove(); err == nil || time.Now().After(late) {
			return err
		}
	}
}

// remove unmounts what the daemon mounted, and removes its files.
func (d *Daemon) remove() error {
	b, err := os.ReadFile("/proc/thread-self/mounts")
	for line := range strings.Lines(string(b)) {
		if f := strings.Fields(line); len(f) > 1 && strings.HasPrefix(f[1], d.dir+"/") {
			_ = unix.Unmount(f[1], unix.MNT_DETACH)
		}
	}
	return errors.Join(err, os.RemoveAll(d.dir))
}

// Containers are those that have the label of a sandbox, with their state.
func (d *Daemon) Containers(ctx context.Context) ([]string, error) {
	list, err := d.Client.ContainerList(ctx, client.ContainerListOptions{All: true, Filters: make(client.Filters).Add("label", "dev.cloche.sandbox")})
	if err != nil {
		return nil, err
	}
	var names []string
	for _, c := range list.Items {
		names = append(names, fmt.Sprintf("%s of sandbox %s: %s", strings.Join(c.Names, " "), c.Labels["dev.cloche.sandbox"], c.State))
	}
	return names, nil
}
