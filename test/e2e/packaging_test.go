//go:build linux

package e2e_test

import (
	"archive/tar"
	"context"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/goccy/go-yaml"
	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/api/types/mount"
	"github.com/moby/moby/client"

	"github.com/cloche-dev/cloche/internal/engine/docker/dockertest"
	"github.com/cloche-dev/cloche/test/fixture"
)

// composed is what compose.yaml gives the daemon's container.
type composed struct {
	CapAdd      []string `yaml:"cap_add"`
	SecurityOpt []string `yaml:"security_opt"`
	Devices     []string `yaml:"devices"`
	ReadOnly    bool     `yaml:"read_only"`
	Tmpfs       []string `yaml:"tmpfs"`
	Volumes     []string `yaml:"volumes"`
	Privileged  bool     `yaml:"privileged"`
}

func readComposed(t *testing.T) composed {
	t.Helper()
	b, err := os.ReadFile("packaging/container/compose.yaml")
	if err != nil {
		t.Fatal(err)
	}
	var file struct{ Services map[string]composed }
	if err := yaml.Unmarshal(b, &file); err != nil {
		t.Fatal(err)
	}
	return file.Services["cloche"]
}

// TestRecipes: neither recipe is privileged or has a socket of the machine's, and both
// give the same capabilities.
func TestRecipes(t *testing.T) {
	c := readComposed(t)
	b, err := os.ReadFile("packaging/kubernetes/cloche.yaml")
	if err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string]string{"compose": strings.Join(c.Volumes, " "), "kubernetes": string(b)} {
		if strings.Contains(text, "docker.sock") || strings.Contains(text, "hostPath") || strings.Contains(text, "privileged: true") {
			t.Errorf("%s has something of the machine's", name)
		}
	}
	if c.Privileged || !c.ReadOnly || len(c.CapAdd) != 3 || !strings.Contains(string(b), "add: ["+strings.Join(c.CapAdd, ", ")+"]") {
		t.Errorf("compose gives %+v, and kubernetes something else", c)
	}
}

// TestDist makes the tarball that is unpacked over /usr/local, and runs what is in it.
func TestDist(t *testing.T) {
	if testing.Short() {
		t.Skip("needs a run without -short: it builds the binary as a release is built")
	}
	for _, program := range []string{"make", "install", "tar"} {
		if _, err := exec.LookPath(program); err != nil {
			t.Skipf("needs %s", program)
		}
	}
	if _, err := os.Stat("dist"); err != nil {
		t.Cleanup(func() { _ = os.RemoveAll("dist") })
	}
	if out, err := exec.CommandContext(t.Context(), "make", "-s", "dist").CombinedOutput(); err != nil {
		t.Fatalf("make dist: %v\n%s", err, out)
	}
	made, err := filepath.Glob("dist/cloche-linux-*.tar.gz")
	if err != nil || len(made) != 1 {
		t.Fatalf("make dist made %q: %v", made, err)
	}
	dir := t.TempDir()
	if out, err := exec.CommandContext(t.Context(), "tar", "-C", dir, "-xzf", made[0]).CombinedOutput(); err != nil {
		t.Fatalf("unpack: %v\n%s", err, out)
	}
	for name, mode := range map[string]os.FileMode{
		"bin/cloche": 0o755, "lib/systemd/system/cloche.service": 0o644, "lib/systemd/user/cloche.service": 0o644, "share/doc/cloche/LICENSE": 0o644,
	} {
		fi, err := os.Stat(filepath.Join(dir, name))
		if err != nil {
			t.Error(err)
		} else if fi.Mode() != mode {
			t.Errorf("%s has the mode %v, want %v", name, fi.Mode(), mode)
		}
	}
	out, err := exec.CommandContext(t.Context(), filepath.Join(dir, "bin/cloche"), "version").CombinedOutput()
	if err != nil {
		t.Errorf("the program does not run: %v\n%s", err, out)
	}
}

// TestUnits asks systemd about its units.
func TestUnits(t *testing.T) {
	if _, err := exec.LookPath("systemd-analyze"); err != nil {
		t.Skip("needs systemd-analyze")
	}
	b, err := os.ReadFile("packaging/systemd/cloche.service")
	if err != nil {
		t.Fatal(err)
	}
	// It looks for the program too, which is not installed here.
	unit := t.TempDir() + "/cloche.service"
	if err := os.WriteFile(unit, []byte(strings.ReplaceAll(string(b), "/usr/local/bin/cloche", "/bin/true")), 0o644); err != nil {
		t.Fatal(err)
	}
	out, err := exec.CommandContext(t.Context(), "systemd-analyze", "verify", "--man=no", unit).CombinedOutput()
	for line := range strings.Lines(string(out)) {
		if strings.Contains(line, "cloche.service") {
			t.Errorf("systemd says: %s", line)
		}
	}
	if err != nil && strings.Contains(string(out), "cloche.service") {
		t.Error(err)
	}
}

// TestInContainer runs a daemon in a container as compose.yaml has it: of an image from
// scratch, with this machine's tools, and a cgroup filesystem that is read-only.
func TestInContainer(t *testing.T) {
	if testing.Short() {
		t.Skip("needs a run without -short: it starts a Docker daemon and sandboxes")
	}
	d := fixture.ContainerDaemon(t, dockertest.Docker)
	ctx, cancel := context.WithTimeout(t.Context(), 4*time.Minute)
	defer cancel()
	b := &boxed{T: t, ctx: ctx, d: d}
	nsjail := os.Getenv(fixture.EnvNsjail)
	b.start(b.image(fixture.Binary(t), nsjail), readComposed(t))

	if out, found := b.try("grep", "-E", " cgroup2? rw,", "/proc/mounts"); found == 0 {
		t.Errorf("the container's cgroup filesystem can be written: %s", out)
	}
	doctor := b.run(0, "cloche", "doctor")
	for _, says := range []string{"not enforced: cpus, memory_bytes: ", "not enforced: cpus, memory_bytes, pids: "} {
		if !strings.Contains(doctor, says) {
			t.Errorf("doctor does not say %q:\n%s", says, doctor)
		}
	}
	b.run(0, "sh", "-c", "echo 'min_tier: namespace' > /var/lib/cloche/policy.yaml")
	for _, engine := range []string{"gvisor", "native", "nsjail"} {
		t.Run(engine, func(t *testing.T) {
			if engine == "nsjail" && nsjail == "" {
				t.Skipf("needs %s, the binary of nsjail", fixture.EnvNsjail)
			}
			b := b.within(t)
			if says := engine + ": usable"; !strings.Contains(doctor, says) {
				t.Errorf("doctor does not say %q:\n%s", says, doctor)
			}
			b.tryEngine(engine)
		})
	}
}

// TestDoctorInContainer: where runs fail for what the container is, doctor says so first,
// with the cause and what to do, and a run says no less.
func TestDoctorInContainer(t *testing.T) {
	if testing.Short() {
		t.Skip("needs a run without -short: it starts a Docker daemon and sandboxes")
	}
	d := fixture.ContainerDaemon(t, dockertest.Docker)
	ctx, cancel := context.WithTimeout(t.Context(), 4*time.Minute)
	defer cancel()
	image := (&boxed{T: t, ctx: ctx, d: d}).image(fixture.Binary(t), "")
	for name, c := range map[string]struct {
		engine, says, mend string
		change             func(*container.HostConfig)
	}{
		"no CAP_SYS_ADMIN": {"gvisor", "a directory of this machine cannot be mounted for a sandbox: operation not permitted", "CAP_SYS_ADMIN", func(h *container.HostConfig) {
			h.CapAdd = nil
		}},
		"home in the container's layer": {"native", "the filesystem of Cloche's home, overlayfs, has no mounts that map owners (idmapped mounts)", "a volume", func(h *container.HostConfig) {
			h.ReadonlyRootfs = false
			h.Mounts = slices.DeleteFunc(h.Mounts, func(m mount.Mount) bool { return m.Target == "/var/lib/cloche" })
		}},
	} {
		t.Run(name, func(t *testing.T) {
			b := &boxed{T: t, ctx: ctx, d: d}
			b.start(image, readComposed(t), c.change)
			doctor, _ := b.try("cloche", "doctor")
			if verdict := c.engine + ": not usable: " + c.says; !strings.Contains(doctor, verdict) || !strings.Contains(doctor, c.mend) {
				t.Errorf("doctor does not say %q and %q:\n%s", verdict, c.mend, doctor)
			}
			b.run(0, "sh", "-c", "echo 'min_tier: namespace' > /var/lib/cloche/policy.yaml")
			out, status := b.try("cloche", "run", "--engine", c.engine, "--", "true")
			if status != 125 || !strings.Contains(out, c.says) || !strings.Contains(out, "cloche doctor") {
				t.Errorf("run ended with %d and said:\n%s", status, out)
			}
			// The same without a daemon, which has no log.
			out, status = b.try("cloche", "run", "--home", "/var/lib/cloche/other", "--engine", c.engine, "--", "true")
			if status == 0 || strings.Contains(out, "daemon's log") {
				t.Errorf("run without a daemon ended with %d and said:\n%s", status, out)
			}
		})
	}
}

// tryEngine has an engine run what looks for a network.
func (b *boxed) tryEngine(engine string) {
	b.Helper()
	b.run(0, "cloche", "create", "--engine", engine, "--name", engine)
	out := b.run(0, "cloche", "exec", engine, "--", "sh", "-c", `
id -u
ls /var/lib/cloche /opt/cloche 2>/dev/null && echo SEES THE DAEMON
mount -t tmpfs none /mnt 2>/dev/null && echo MOUNTS
grep -q eth /proc/net/dev && echo HAS A NETWORK
true`)
	for _, bad := range []string{"SEES THE DAEMON", "MOUNTS", "HAS A NETWORK"} {
		if strings.Contains(out, bad) {
			b.Errorf("a sandbox %s:\n%s", strings.ToLower(bad), out)
		}
	}
	if !strings.HasPrefix(strings.TrimSpace(out), "0") {
		b.Error(out)
	}
	b.run(7, "cloche", "exec", engine, "--", "sh", "-c", "exit 7")
	b.run(0, "cloche", "rm", "-f", engine)
}

// boxed is a daemon in a container.
type boxed struct {
	*testing.T
	ctx context.Context
	d   *dockertest.Daemon
	id  string
}

// within is the same for a part of the test.
func (b *boxed) within(t *testing.T) *boxed {
	return &boxed{T: t, ctx: b.ctx, d: b.d, id: b.id}
}

// image makes an image of the program alone and of nsjail, where that is given, with
// the directories that they need.
func (b *boxed) image(program, nsjail string) string {
	b.Helper()
	files := map[string][]byte{"etc/passwd": []byte("root:x:0:0:root:/root:/bin/sh\n"), "etc/group": []byte("root:x:0:\n")}
	for name, path := range map[string]string{"opt/cloche/cloche": program, "opt/cloche/nsjail": nsjail} {
		if path == "" {
			continue
		}
		data, err := os.ReadFile(path)
		if err != nil {
			b.Fatal(err)
		}
		files[name] = data
	}
	r, w := io.Pipe()
	go func() {
		t := tar.NewWriter(w)
		for _, dir := range []string{"etc", "tmp", "root", "run", "usr", "proc", "sys", "dev", "opt", "opt/cloche", "var", "var/lib", "var/lib/cloche"} {
			_ = t.WriteHeader(&tar.Header{Typeflag: tar.TypeDir, Name: dir + "/", Mode: 0o755})
		}
		for _, name := range []string{"bin", "sbin", "lib", "lib64"} {
			_ = t.WriteHeader(&tar.Header{Typeflag: tar.TypeSymlink, Name: name, Linkname: "usr/" + name, Mode: 0o777})
		}
		for name, f := range files {
			_ = t.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: name, Mode: 0o755, Size: int64(len(f))})
			_, _ = t.Write(f)
		}
		w.CloseWithError(t.Close())
	}()
	answer, err := b.d.Client.ImageImport(b.ctx, client.ImageImportSource{Source: r, SourceName: "-"}, "cloche", client.ImageImportOptions{Tag: "scratch"})
	if err == nil {
		_, err = io.Copy(io.Discard, answer)
		answer.Close()
	}
	if err != nil {
		b.Fatal(err)
	}
	return "cloche:scratch"
}

func (b *boxed) start(image string, c composed, change ...func(*container.HostConfig)) {
	b.Helper()
	h := &container.HostConfig{
		NetworkMode: "none", CapAdd: c.CapAdd, SecurityOpt: []string{}, ReadonlyRootfs: c.ReadOnly, Tmpfs: map[string]string{},
		Mounts: []mount.Mount{{Type: mount.TypeBind, Source: "/usr", Target: "/usr", ReadOnly: true}, {Type: mount.TypeVolume, Source: "home", Target: "/var/lib/cloche"}},
	}
	for _, o := range c.SecurityOpt {
		if o == "systempaths=unconfined" { // is the client's word for two empty lists
			h.MaskedPaths, h.ReadonlyPaths = []string{}, []string{}
			continue
		}
		h.SecurityOpt = append(h.SecurityOpt, o)
	}
	for _, dir := range c.Tmpfs {
		h.Tmpfs[dir] = "exec"
	}
	for _, device := range c.Devices {
		h.Devices = append(h.Devices, container.DeviceMapping{PathOnHost: device, PathInContainer: device, CgroupPermissions: "rwm"})
	}
	for _, f := range change {
		f(h)
	}
	made, err := b.d.Client.ContainerCreate(b.ctx, client.ContainerCreateOptions{HostConfig: h, Config: &container.Config{
		Image: image, Cmd: []string{"cloche", "serve"}, Env: []string{"PATH=/opt/cloche:/usr/bin:/usr/sbin", "CLOCHE_HOME=/var/lib/cloche"},
	}})
	if err == nil {
		_, err = b.d.Client.ContainerStart(b.ctx, made.ID, client.ContainerStartOptions{})
	}
	if err != nil {
		b.Fatal(err)
	}
	b.id = made.ID
	if !fixture.Poll(func() bool { _, code := b.try("cloche", "ls"); return code == 0 }) {
		b.Fatal("the daemon in the container does not listen")
	}
}

// try runs a command in the container and returns what it wrote and its status.
func (b *boxed) try(argv ...string) (string, int) {
	b.Helper()
	made, err := b.d.Client.ExecCreate(b.ctx, b.id, client.ExecCreateOptions{AttachStdout: true, AttachStderr: true, TTY: true, Cmd: argv})
	if err != nil {
		b.Fatal(err)
	}
	att, err := b.d.Client.ExecAttach(b.ctx, made.ID, client.ExecAttachOptions{TTY: true})
	if err != nil {
		b.Fatal(err)
	}
	defer att.Close()
	out, err := io.ReadAll(att.Reader)
	if err != nil {
		b.Fatal(err)
	}
	for {
		state, err := b.d.Client.ExecInspect(b.ctx, made.ID, client.ExecInspectOptions{})
		if err != nil {
			b.Fatal(err)
		}
		if !state.Running {
			return string(out), state.ExitCode
		}
	}
}

// run is try of what ends with a status.
func (b *boxed) run(status int, argv ...string) string {
	b.Helper()
	out, code := b.try(argv...)
	if code != status {
		b.Fatalf("%s: status %d, not %d\n%s", strings.Join(argv, " "), code, status, out)
	}
	return out
}
