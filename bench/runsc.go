//go:build linux

package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"

	specs "github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"
)

// stockRunsc is gVisor's own command line, built from the very module that is
// compiled into Cloche, with the flags of an ordinary user. A loopback is all
// the network there is, as in Cloche.
type stockRunsc struct {
	bin   string
	dir   string
	image string // the EROFS image that Cloche runs too
	// network is the flag, and netns the namespace that it is about; empty means no network.
	network, netns string
	count          int
}

// newRunsc builds runsc; where this version was built before, it is taken from
// the user's cache directory.
func newRunsc(ctx context.Context, b *bench, image string) (*stockRunsc, error) {
	if b.report.Machine.GVisor == "" {
		return nil, errors.New("find gVisor's version: go list failed")
	}
	r := &stockRunsc{
		bin: runscPath(b), dir: filepath.Join(b.dir, "runsc"), image: image,
	}
	if _, err := os.Stat(r.bin); err != nil {
		cmd := command(ctx, "nice", "go", "build", "-trimpath", "-ldflags=-s -w", "-o", r.bin, "gvisor.dev/gvisor/runsc")
		cmd.Dir, cmd.Env = b.root, append(os.Environ(), "CGO_ENABLED=0")
		if out, err := cmd.CombinedOutput(); err != nil {
			return nil, fmt.Errorf("build runsc: %w: %s", err, tail(string(out)))
		}
	}
	b.report.Machine.Peers["runsc"] = "gvisor.dev/gvisor/runsc " + b.report.Machine.GVisor + ", --platform=systrap --network=none, cgroups on, else defaults"
	b.defers(r.clean)
	return r, os.MkdirAll(filepath.Join(r.dir, "state"), 0o755)
}

// runscPath is where runsc is, or will be.
func runscPath(b *bench) string {
	cache, err := os.UserCacheDir()
	if err != nil {
		cache = b.dir
	}
	return filepath.Join(cache, "cloche-bench", "runsc-"+b.report.Machine.GVisor)
}

// clean takes away what runsc leaves when its last container is gone: an empty
// network namespace that it keeps mounted.
func (r *stockRunsc) clean() error {
	var errs []error
	for _, state := range []string{filepath.Join(r.dir, "state"), filepath.Join(filepath.Dir(r.dir), "docker", "exec", "runtime-runc", "moby")} {
		err := unix.Unmount(filepath.Join(state, "null-netns"), unix.MNT_DETACH)
		if !errors.Is(err, unix.EINVAL) && !errors.Is(err, unix.ENOENT) {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

func (r *stockRunsc) argv(verb string, args ...string) []string {
	return append([]string{r.bin, "--root", filepath.Join(r.dir, "state"), "--platform=systrap", "--network=" + cmp.Or(r.network, "none"), verb}, args...)
}

// run is `runsc run` of one container, from the start of the process to its end.
func (r *stockRunsc) run(ctx context.Context, bundle, want string) (measure, error) {
	return process(ctx, want, nil, r.argv("run", "--bundle", bundle, r.nextID())...)
}

func (r *stockRunsc) nextID() string {
	r.count++
	return fmt.Sprintf("bench-%d-%05d", os.Getpid(), r.count) // none is the beginning of another: runsc takes those too
}

// detached starts a container that sleeps, and returns its id.
func (r *stockRunsc) detached(ctx context.Context, bundle string) (string, error) {
	id := r.nextID()
	// Its output must not be a pipe to this process: the container would hold it open.
	cmd := command(ctx, r.argv("run", "--detach", "--bundle", bundle, id)...)
	if err := cmd.Run(); err != nil {
		return "", fmt.Errorf("runsc run --detach: %w", err)
	}
	return id, nil
}

func (r *stockRunsc) remove(ctx context.Context, id string) error {
	_, err := output(ctx, r.argv("delete", "--force", id)...)
	return err
}

// imageBundle writes a bundle whose root is the EROFS image, with no host
// directory.
func (r *stockRunsc) imageBundle(name string, argv ...string) (string, error) {
	return r.bundle(name, r.image, nil, argv)
}

// hostBundle writes a bundle with the image, binds and masks of Cloche's image
// host, and a workspace.
func (r *stockRunsc) hostBundle(name string, h hostImage, workspace string, argv ...string) (string, error) {
	var mounts []specs.Mount
	for _, m := range h.Mounts {
		mounts = append(mounts, specs.Mount{Destination: m.Target, Type: "bind", Source: m.Source, Options: []string{"rbind", "ro", "nosuid", "nodev"}})
	}
	for _, m := range h.Masks {
		mounts = append(mounts, specs.Mount{Destination: m, Type: "tmpfs", Source: "tmpfs", Options: []string{"size=65536"}})
	}
	mounts = append(mounts, specs.Mount{Destination: "/workspace", Type: "bind", Source: workspace, Options: []string{"rbind", "rw", "nosuid", "nodev"}})
	return r.bundle(name, h.Image, mounts, argv)
}

func (r *stockRunsc) bundle(name, image string, mounts []specs.Mount, argv []string) (string, error) {
	mounts = append([]specs.Mount{
		{Destination: "/sys", Type: "sysfs", Source: "sysfs", Options: []string{"ro"}},
		{Destination: "/dev/shm", Type: "tmpfs", Source: "tmpfs", Options: []string{"size=" + strconv.Itoa(limitShm)}},
	}, mounts...)
	return writeBundle(filepath.Join(r.dir, name), r.netns, specs.Root{Path: "rootfs"}, mounts, argv, map[string]string{
		"dev.gvisor.spec.rootfs.source": image, "dev.gvisor.spec.rootfs.type": "erofs", "dev.gvisor.spec.rootfs.overlay": "memory",
	})
}

// writeBundle writes a bundle with the limits that every subject has, in a directory whose name is also its cgroup's. An
// empty netns is a new one.
func writeBundle(dir, netns string, root specs.Root, mounts []specs.Mount, argv []string, annotations map[string]string) (string, error) {
	memory, quota, period, pids := int64(limitMemory), int64(limitCPUs*100_000), uint64(100_000), int64(limitPids)
	spec := specs.Spec{
		Version:  "1.0.2", // which all of the peers take
		Hostname: "bench",
		Root:     &root,
		Process:  &specs.Process{Args: argv, Cwd: "/", Env: []string{"PATH=/usr/local/bin:/usr/bin:/bin"}},
		Mounts: append([]specs.Mount{
			{Destination: "/proc", Type: "proc", Source: "proc"},
			{Destination: "/dev", Type: "tmpfs", Source: "tmpfs"},
			{Destination: "/tmp", Type: "tmpfs", Source: "tmpfs", Options: []string{"size=" + strconv.Itoa(limitTmp)}},
		}, mounts...),
		Annotations: annotations,
		Linux: &specs.Linux{
			CgroupsPath: "/" + cgroupParent + "/" + filepath.Base(dir),
			Namespaces: []specs.LinuxNamespace{
				{Type: specs.PIDNamespace}, {Type: specs.IPCNamespace}, {Type: specs.UTSNamespace}, {Type: specs.MountNamespace}, {Type: specs.NetworkNamespace, Path: netns},
			},
			Resources: &specs.LinuxResources{
				Memory: &specs.LinuxMemory{Limit: &memory}, CPU: &specs.LinuxCPU{Quota: &quota, Period: &period}, Pids: &specs.LinuxPids{Limit: pids},
			},
		},
	}
	data, err := json.Marshal(spec)
	if err != nil {
		return "", fmt.Errorf("encode spec: %w", err)
	}
	if err := os.MkdirAll(filepath.Join(dir, "rootfs"), 0o755); err != nil {
		return "", fmt.Errorf("make bundle: %w", err)
	}
	if err := os.WriteFile(filepath.Join(dir, "config.json"), data, 0o644); err != nil {
		return "", fmt.Errorf("make bundle: %w", err)
	}
	return dir, nil
}
