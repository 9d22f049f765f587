package enginetest

import (
	"errors"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	erofs "github.com/erofs/go-erofs"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/engine"
)

// testInside looks at the sandbox from inside.
func testInside(s *suite) {
	i, p := s.create(func(p *engine.Plan) {
		p.Tmpfs = append(p.Tmpfs, engine.Tmpfs{Target: "/dev/shm", SizeBytes: 1 << 20, Mode: 0o1777})
	})
	if got := s.exec(i, Inside, "hostname"); got != p.Hostname+"\n" {
		s.Errorf("hostname is %q, want %q", got, p.Hostname)
	}
	if got := s.exec(i, Inside, "cat", "/etc/marker"); got != "root image\n" {
		s.Errorf("the root image's file holds %q", got)
	}
	if got := s.exec(i, Inside, "cat", "/proc/1/cmdline"); !strings.HasPrefix(got, Inside+"\x00agent") {
		s.Errorf("the first process is %q, not the agent", got)
	}
	if got := s.exec(i, Inside, "cat", "/proc/1/environ"); got != "" && got != "HOME=/\x00" {
		s.Errorf("the agent has an environment: %q", got)
	}
	ifaces := s.exec(i, Inside, "interfaces")
	if lines := strings.Split(strings.TrimSpace(ifaces), "\n"); len(lines) != 1 || !strings.HasPrefix(ifaces, "lo ") {
		s.Errorf("network is more than a loopback:\n%s", ifaces)
	}
	// The host's loopback is another one.
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		s.Fatal(err)
	}
	defer ln.Close()
	s.fails(i, Inside, "connect", ln.Addr().String())
	mounts := s.exec(i, Inside, "cat", "/proc/mounts")
	for _, want := range []string{" /proc ", " /sys ", " /dev ", " /dev/pts ", " /dev/shm ", " /tmp ", " " + AgentTarget + " "} {
		if !strings.Contains(mounts, want) {
			s.Errorf("no mount at%s:\n%s", want, mounts)
		}
	}
	if strings.Contains(mounts, p.Dir) {
		s.Errorf("the mounts show a path of the host:\n%s", mounts)
	}
	roots := 0
	for line := range strings.Lines(mounts) {
		if f := strings.Fields(line); len(f) > 1 && f[1] == "/" {
			roots++
		}
	}
	if roots != 1 {
		s.Errorf("%d filesystems are mounted at /, one of which may be the host's:\n%s", roots, mounts)
	}
	if _, ok := s.engine.(engine.Host); ok {
		status := map[string]string{}
		for line := range strings.Lines(s.exec(i, Inside, "cat", "/proc/1/status")) {
			name, value, _ := strings.Cut(line, ":")
			status[name] = strings.TrimSpace(value)
		}
		if status["NoNewPrivs"] != "1" {
			s.Error("the agent can get more privileges")
		}
		if status["CapBnd"] == "" || status["CapBnd"] != status["CapPrm"] {
			s.Errorf("the agent has the capabilities %s, and what it starts may have %s", status["CapPrm"], status["CapBnd"])
		}
	}
	s.fails(i, Inside, "write", AgentTarget+"/x", "x")
	s.fails(i, Inside, "write", "/sys/x", "x")
	s.exec(i, Inside, "write", "/new", "x")
	// A directory of the image gives way to another one, in which nothing of it is seen.
	s.exec(i, Inside, "replace", "/old")
	if got := s.exec(i, Inside, "ls", "/old"); got != "" {
		s.Errorf("in a directory that was made anew is %q", got)
	}
	if got := s.exec(i, Inside, "fill", "/dev/shm/big"); !strings.HasPrefix(got, "1 ") {
		s.Errorf("a tmpfs of 1 MiB took more: %s", got)
	}
	for _, secret := range []string{"/proc/1/root" + p.Dir, p.Dir, p.Root.Image, "/etc/shadow"} {
		s.fails(i, Inside, "cat", secret)
	}
}

// testDevices uses every device that a program may count on, on the host's own kernel
// behind the filter that the agent puts before what it starts.
func testDevices(s *suite) {
	i, _ := s.create(func(p *engine.Plan) {
		p.Tmpfs = append(p.Tmpfs, engine.Tmpfs{Target: "/dev/shm", SizeBytes: 1 << 20, Mode: 0o1777})
	})
	s.exec(i, Inside, "devices")
	if _, ok := s.engine.(engine.Host); ok {
		s.exec(i, Inside, "devices", "confined")
	}
}

// testReach sees that nothing inside changes what the agent gets of the machine, where
// the kernel is the host's.
func testReach(s *suite) {
	if _, ok := s.engine.(engine.Host); !ok {
		s.Skip("needs an engine with the host's own kernel: here the agent has a uid of its own, and no share but the instance's")
	}
	i, _ := s.create(nil)
	if got := s.exec(i, Inside, "reach"); got != "" {
		s.Errorf("root inside could:\n%s", got)
	}
	s.alive(i)
}

// testUID sees that the agent is who the plan says, with all capabilities.
func testUID(s *suite) {
	const uid = 4321
	if h, ok := s.engine.(engine.Host); ok && h.Terms().SingleUser {
		s.Skip("needs more ids than one: here the engine has only root's inside")
	}
	i, _ := s.create(func(p *engine.Plan) { p.Agent.UID = uid })
	status := s.exec(i, Inside, "cat", "/proc/1/status")
	for _, want := range []string{"Uid:\t4321\t4321\t4321\t4321", "Gid:\t4321\t4321\t4321\t4321"} {
		if !strings.Contains(status, want) {
			s.Errorf("no %q in the agent's status:\n%s", want, status)
		}
	}
	if strings.Contains(status, "CapEff:\t0000000000000000") {
		s.Errorf("the agent has no capabilities:\n%s", status)
	}
}

// testMounts sees files of the host inside, and changes of each on the other
// side.
func testMounts(s *suite) {
	dir := s.TempDir()
	write := func(name, text string) string {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			s.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			s.Fatal(err)
		}
		return path
	}
	write("rw/a", "from the host\n")
	write("ro/b", "look only\n")
	file := write("single", "one file\n")
	write("nested/c", "below\n")
	write("outside", "not mounted\n")
	if err := os.Symlink(filepath.Join(dir, "outside"), filepath.Join(dir, "rw", "way-out")); err != nil {
		s.Fatal(err)
	}
	if err := os.Symlink("../outside", filepath.Join(dir, "rw", "way-up")); err != nil {
		s.Fatal(err)
	}
	i, _ := s.create(func(p *engine.Plan) {
		p.Mounts = []engine.Mount{
			{Source: filepath.Join(dir, "rw"), Target: "/srv/job"},
			{Source: filepath.Join(dir, "ro"), Target: "/opt/ro", ReadOnly: true, Static: true},
			{Source: file, Target: "/etc/single", ReadOnly: true},
			{Source: filepath.Join(dir, "nested"), Target: "/srv/job/deeper", ReadOnly: true},
		}
	})
	for path, want := range map[string]string{
		"/srv/job/a": "from the host\n", "/opt/ro/b": "look only\n", "/etc/single": "one file\n", "/srv/job/deeper/c": "below\n",
	} {
		if got := s.exec(i, Inside, "cat", path); got != want {
			s.Errorf("%s holds %q, want %q", path, got, want)
		}
	}
	s.exec(i, Inside, "write", "/srv/job/new", "from inside\n")
	if b, err := os.ReadFile(filepath.Join(dir, "rw", "new")); err != nil || string(b) != "from inside\n" {
		s.Errorf("what was written inside is %q on the host, %v", b, err)
	}
	write("rw/later", "written later\n")
	if got := s.exec(i, Inside, "cat", "/srv/job/later"); got != "written later\n" {
		s.Errorf("what was written on the host later is %q inside", got)
	}
	for _, path := range []string{"/opt/ro/b", "/opt/ro/new", "/etc/single", "/srv/job/deeper/c"} {
		s.fails(i, Inside, "write", path, "x")
	}
	for _, path := range []string{"/srv/job/way-out", "/srv/job/way-up", "/srv/job/../outside"} {
		s.fails(i, Inside, "cat", path)
	}
	mounts := s.exec(i, Inside, "cat", "/proc/mounts")
	// To a process without new privileges no file is set-user-ID. Where the engine makes the
	// mount itself, that is not all that is between.
	_, host := s.engine.(engine.Host)
	harmless := (s.Daemon || !host) && strings.Contains(s.exec(i, Inside, "cat", "/proc/1/status"), "NoNewPrivs:\t1")
	for line := range strings.Lines(mounts) {
		f := strings.Fields(line)
		if !harmless && len(f) > 3 && strings.HasPrefix(f[1], "/srv/job") && !strings.Contains(","+f[3]+",", ",nosuid,") {
			s.Errorf("mount without nosuid: %s", line)
		}
	}
	if strings.Contains(mounts, dir) {
		s.Errorf("the mounts show a path of the host:\n%s", mounts)
	}
}

// testMountPoints checks that a link of the image cannot lead a mount point into a directory of the
// host. Nothing is created there, and the error names the link.
func testMountPoints(s *suite) {
	root := filepath.Join(s.TempDir(), "hostile.erofs")
	WriteImage(s, root, func(w *erofs.Writer) error {
		return errors.Join(w.Mkdir("/tmp", 0o777|os.ModeSticky), w.Symlink("/m", "/etc"), w.Symlink("../m/deeper", "/srv"), w.Symlink("m", "/run"))
	})
	file := filepath.Join(s.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o644); err != nil {
		s.Fatal(err)
	}
	for name, more := range map[string][]engine.Mount{
		"a file":           {{Source: file, Target: "/etc/single", ReadOnly: true}},
		"a directory":      {{Source: s.TempDir(), Target: "/srv/a/b"}},
		"the mount itself": {{Source: s.TempDir(), Target: "/run"}},
		"nothing of it":    nil,
	} {
		host := s.TempDir()
		p := s.plan()
		p.Root.Image, p.Mounts = root, append([]engine.Mount{{Source: host, Target: "/m"}}, more...)
		i, err := s.engine.Create(s.ctx, p)
		switch {
		case err == nil:
			s.close(i)
			if more != nil {
				s.Errorf("%s: it was mounted", name)
			}
		case api.CodeOf(err) != api.CodeInvalid || !strings.Contains(err.Error(), "symbolic link"):
			s.Errorf("%s: %v (%v)", name, err, errors.Unwrap(err))
		}
		if made, err := os.ReadDir(host); err != nil || len(made) > 0 {
			s.Errorf("%s: in the directory of the host is %v, %v", name, made, err)
		}
	}
}

func testReadOnlyRoot(s *suite) {
	i, _ := s.create(func(p *engine.Plan) {
		p.Root.ReadOnly = true
		p.Mounts = []engine.Mount{{Source: s.TempDir(), Target: "/srv/job"}}
	})
	s.fails(i, Inside, "write", "/new", "x")
	s.fails(i, Inside, "write", "/etc/marker", "x")
	s.exec(i, Inside, "write", "/tmp/new", "x")
	s.exec(i, Inside, "write", "/srv/job/new", "x")
}

func testDiskLimit(s *suite) {
	s.need("disk_bytes")
	i, _ := s.create(func(p *engine.Plan) { p.Limits.DiskBytes = 32 << 20 })
	got := s.exec(i, Inside, "fill", "/big")
	if !strings.HasPrefix(got, "32 ") && !strings.HasPrefix(got, "31 ") {
		s.Errorf("a root of 32 MiB took: %s", got)
	}
	s.alive(i)
}

// need skips a test when the engine says that it cannot enforce a limit here.
func (s *suite) need(limit string) {
	if e := s.engine.Probe(s.ctx).Enforces[limit]; !e.OK {
		s.Skipf("needs an enforced %s limit: %s", limit, e.Reason)
	}
}

func (s *suite) stat(i engine.Instance) engine.Stat {
	s.Helper()
	st, ok := i.(engine.Statter)
	if !ok {
		s.Fatal("the instance enforces limits and cannot say what it uses")
	}
	v, err := st.Stat(s.ctx)
	if err != nil {
		s.Fatalf("stat: %v", err)
	}
	return v
}

// testMemoryLimit: the hog dies, not the sandbox.
func testMemoryLimit(s *suite) {
	s.need("memory_bytes")
	i, _ := s.create(func(p *engine.Plan) { p.Limits.MemoryBytes = 192 << 20 })
	before := s.stat(i)
	if before.MemoryBytes <= 0 || before.MemoryBytes > 192<<20 {
		s.Errorf("uses %d bytes of 192 MiB", before.MemoryBytes)
	}
	out := s.fails(i, Inside, "hog", "1024")
	if strings.Contains(out, "took it all") {
		s.Fatal("a gigabyte went into 192 MiB")
	}
	s.alive(i)
	if after := s.stat(i); after.OOMKills <= before.OOMKills {
		s.Errorf("out of memory kills were %d, are %d", before.OOMKills, after.OOMKills)
	}
}

// testSocketMemory: what lies in sockets is bounded as other memory is, in whichever way the
// kernel counts it.
func testSocketMemory(s *suite) {
	s.need("memory_bytes")
	if _, ok := s.engine.(engine.Host); !ok || s.Daemon {
		s.Skip("needs groups of the engine's own: another kernel's sockets are its memory, and a daemon has groups of its own")
	}
	i, _ := s.create(func(p *engine.Plan) { p.Limits.MemoryBytes = 128 << 20 })
	o, err := Exec(s.ctx, i, Inside, "sockets", "160")
	if err != nil {
		s.Fatal(err)
	}
	got, err := strconv.Atoi(strings.TrimSpace(string(o.Output)))
	// It may have been ended for it.
	if o.Code == 0 && (err != nil || got >= 128) {
		s.Errorf("a sandbox of 128 MiB has %s MiB in sockets", o.Output)
	}
	s.Logf("%s%s", o.Output, o.Error)
	s.alive(i)
}

func testCPULimit(s *suite) {
	s.need("cpus")
	limit := 0.2
	if s.Slow { // the limit is the limit of the create, too
		limit = 0.3
	}
	i, _ := s.create(func(p *engine.Plan) { p.Limits.CPUs = limit })
	before, began := s.stat(i), time.Now()
	s.exec(i, Inside, "spin", "2s")
	used, wall := s.stat(i).CPU-before.CPU, time.Since(began)
	// Coarse on purpose: without a limit it is the whole of the wall time.
	if used <= 0 || used > wall/2 {
		s.Errorf("used %v of processor time in %v with a limit of %v", used, wall, limit)
	}
}

// testPidsLimit does what the agent does to enforce the limit, or sees the engine
// enforce it where that says so.
func testPidsLimit(s *suite) {
	req := map[string]any{"argv": []string{Inside, "forks"}}
	h, ok := s.engine.(engine.Host)
	if !ok || !h.Terms().LimitsPids {
		req["pids"] = 20
	}
	if ok && !h.Terms().LimitsPids {
		s.need("pids")
	}
	i, _ := s.create(func(p *engine.Plan) {
		if ok {
			p.Limits.Pids = 20
		}
	})
	o, err := execRequest(s.ctx, i, req)
	if err != nil || o.Code != 0 || !strings.Contains(string(o.Output), "resource temporarily unavailable") {
		s.Errorf("no limit of processes: %v, %s\n%s", err, o.Error, o.Output)
	}
	s.alive(i)
}
