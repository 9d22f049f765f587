//go:build linux

package ingvisor

import (
	"bytes"
	"io/fs"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	erofs "github.com/erofs/go-erofs"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/agent"
	"github.com/cloche-dev/cloche/internal/engine"
	"github.com/cloche-dev/cloche/internal/engine/enginetest"
	"github.com/cloche-dev/cloche/internal/engine/gvisor"
	"github.com/cloche-dev/cloche/internal/engine/gvisor/role"
	"github.com/cloche-dev/cloche/test/longtest"
)

func TestMain(m *testing.M) {
	role.Dispatch()
	os.Exit(m.Run())
}

const target = "/.cloche"

// box is a gVisor sandbox with the host's /usr and the agent.
type box struct {
	*agent.Client
	engine   engine.Engine
	plan     engine.Plan
	instance engine.Instance
	token    []byte
}

// boot makes a sandbox and connects to its agent.
func boot(t testing.TB, tune func(*agent.Config)) *box {
	t.Helper()
	return bootWith(t, tune, nil)
}

// bootWith is boot with a plan that change has changed.
func bootWith(t testing.TB, tune func(*agent.Config), change func(*engine.Plan)) *box {
	t.Helper()
	longtest.Skip(t, "it starts sandboxes")
	dir := t.TempDir()
	e, err := gvisor.New(gvisor.Options{StateDir: filepath.Join(dir, "state"), Logger: slog.New(slog.NewTextHandler(t.Output(), nil))})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { e.Close() })
	if r := e.Probe(t.Context()); !r.Usable {
		t.Skipf("needs gVisor to work here: %v", r.Problems)
	}
	root, program := images(t, dir)
	cfg := agent.Config{Token: agent.NewToken(), PidsMax: 256, SingleUser: os.Getuid() != 0}
	if tune != nil {
		tune(&cfg)
	}
	data, err := cfg.Marshal()
	if err != nil {
		t.Fatal(err)
	}
	plan := engine.Plan{
		ID: api.NewID("sb-"), Owner: "agenttest", Dir: t.TempDir(), Hostname: "agenttest",
		Root:   engine.Root{Image: root},
		Mounts: []engine.Mount{{Source: "/usr", Target: "/usr", ReadOnly: true, Static: true}, {Source: t.TempDir(), Target: "/work"}},
		Tmpfs:  []engine.Tmpfs{{Target: "/tmp", SizeBytes: 256 << 20, Mode: 0o1777}},
		Limits: engine.Limits{MemoryBytes: 1 << 30, CPUs: 2, Pids: cfg.PidsMax, DiskBytes: 512 << 20},
		Agent:  engine.Agent{Image: program, Target: target, Argv: []string{target + "/" + agent.Argv0}, UID: agent.UID, Config: data, Port: agent.Port},
	}
	if change != nil {
		change(&plan)
	}
	i, err := e.Create(t.Context(), plan)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { i.Close(t.Context()) })
	b := &box{engine: e, plan: plan, instance: i, token: cfg.Token}
	b.Client = b.connect(t)
	return b
}

// users are those of a sandbox that a test is about: root, and alice. Without root there
// is no other id than 0 in a sandbox.
func users(t *testing.T) []string {
	t.Helper()
	if os.Geteuid() == 0 {
		return []string{"", "alice"}
	}
	t.Run("alice", needsUsers)
	return []string{""}
}

// needsUsers skips a test of a user who is not root in the sandbox.
func needsUsers(t *testing.T) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root: a sandbox of another user has uid 0 alone")
	}
}

func (b *box) connect(t testing.TB) *agent.Client {
	t.Helper()
	conn, err := b.instance.Dial(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	c, err := agent.Connect(t.Context(), conn, b.token)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

// images builds the agent and a root that is the host's /usr and little else.
func images(t testing.TB, dir string) (root, program string) {
	t.Helper()
	binary := filepath.Join(dir, agent.Argv0)
	cmd := exec.CommandContext(t.Context(), "go", "build", "-trimpath", "-ldflags=-s -w", "-o", binary, "github.com/cloche-dev/cloche/cmd/cloche-agent")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("build the agent: %v\n%s", err, out)
	}
	code, err := os.ReadFile(binary)
	if err != nil {
		t.Fatal(err)
	}
	program, root = filepath.Join(dir, "agent.erofs"), filepath.Join(dir, "root.erofs")
	enginetest.WriteImage(t, program, func(w *erofs.Writer) error { return add(w, "/"+agent.Argv0, code, 0o555) })
	enginetest.WriteImage(t, root, func(w *erofs.Writer) error {
		for name, mode := range map[string]fs.FileMode{"/etc": 0o755, "/tmp": 0o777 | fs.ModeSticky, "/root": 0o700, "/usr": 0o755, "/work": 0o755, "/srv": 0o755} {
			if err := w.Mkdir(name, mode); err != nil {
				return err
			}
		}
		for _, name := range []string{"bin", "sbin", "lib", "lib64"} {
			if err := w.Symlink("usr/"+name, "/"+name); err != nil {
				return err
			}
		}
		if err := add(w, "/etc/passwd", []byte("root:x:0:0:root:/root:/bin/sh\nalice:x:1000:1000::/home/alice:/bin/sh\n"), 0o644); err != nil {
			return err
		}
		return add(w, "/etc/group", []byte("root:x:0:\nalice:x:1000:\nstaff:x:50:alice\n"), 0o644)
	})
	return root, program
}

func add(w *erofs.Writer, name string, data []byte, mode fs.FileMode) error {
	f, err := w.Create(name)
	if err != nil {
		return err
	}
	if _, err := f.Write(data); err != nil {
		return err
	}
	if err := f.Close(); err != nil {
		return err
	}
	return w.Chmod(name, mode)
}

var environment = []string{"PATH=/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin", "HOME=/root", "LANG=C.UTF-8"}

func start(argv ...string) agent.Start {
	return agent.Start{ExecID: api.NewID("x-"), Argv: argv, Env: environment, Cwd: "/", Timeout: 60 * time.Second}
}

func shell(script string) agent.Start { return start("/bin/sh", "-c", script) }

// run executes a script that must succeed and returns its output.
func (b *box) run(t testing.TB, script string) string {
	t.Helper()
	r, err := b.Exec(t.Context(), shell(script))
	if err != nil {
		t.Fatalf("exec %q: %v", script, err)
	}
	if !r.OK() {
		t.Fatalf("exec %q: exit %v, signal %q, stdout %q, stderr %q", script, r.ExitStatus(), r.Signal, r.Stdout, r.Stderr)
	}
	return string(bytes.TrimSpace(r.Stdout))
}
