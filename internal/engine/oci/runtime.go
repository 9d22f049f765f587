//go:build linux

package oci

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/engine/cgroup"
)

// Runtimes that can be named without a path.
const (
	Runc = "runc"
	Crun = "crun"
	// Krun is crun with the handler that starts a virtual machine.
	Krun = "krun"
)

const (
	// sayTimeout bounds a command that only says something.
	sayTimeout = 3 * time.Second
	// workTimeout bounds a command that makes or removes something.
	workTimeout = 30 * time.Second
	// maxSaid bounds what is read of a runtime's output.
	maxSaid = 64 << 10
	// container is what every sandbox is called in its own state directory.
	container = "sandbox"
)

// binary is a runtime that was found.
type binary struct {
	path string
	version
}

// tier is how strong what this runtime makes is.
func tier(name string) api.Tier {
	if name == Krun {
		return api.TierMicroVM
	}
	return api.TierNamespace
}

// find looks for a runtime by name or path, without asking it anything.
func find(name string) (string, error) {
	if filepath.IsAbs(name) {
		if err := unix.Access(name, unix.X_OK); err != nil {
			return "", fmt.Errorf("find %s: %w", name, err)
		}
		return name, nil
	}
	if name == Krun {
		name = Crun
	}
	// Packages put runtimes where PATH of a user does not lead.
	for _, dir := range append(filepath.SplitList(os.Getenv("PATH")), "/usr/sbin", "/usr/bin", "/usr/local/sbin", "/usr/local/bin") {
		if path := filepath.Join(dir, name); filepath.IsAbs(dir) && unix.Access(path, unix.X_OK) == nil {
			return path, nil
		}
	}
	return "", fmt.Errorf("find %s: %w", name, exec.ErrNotFound)
}

// ask finds a runtime and has it say what it is.
func ask(ctx context.Context, name string) (binary, error) {
	path, err := find(name)
	if err != nil {
		return binary{}, err
	}
	ctx, cancel := context.WithTimeout(ctx, sayTimeout)
	defer cancel()
	out, err := say(ctx, path, "--version")
	if err != nil {
		return binary{}, err
	}
	v, err := parseVersion(out)
	if err != nil {
		return binary{}, err
	}
	return binary{path, v}, nil
}

// hide are the mounts that a runtime must not see: crun runs nothing where it sees
// both versions of cgroups.
func (b binary) hide() (mounts []string) {
	info, err := os.ReadFile("/proc/self/mountinfo")
	if b.Name != Crun || err != nil {
		return nil
	}
	all := cgroup.ParseMounts(string(info))
	if !slices.ContainsFunc(all, func(m cgroup.Mount) bool { return m.Version == 1 }) {
		return nil
	}
	for _, m := range all {
		if m.Version == 2 {
			mounts = append(mounts, m.Path)
		}
	}
	return mounts
}

// errSaidTooMuch is of a runtime whose output is longer than any that means something.
var errSaidTooMuch = errors.New("it printed more than any answer has")

// errHangs is of a runtime that has not ended in time.
var errHangs = errors.New("it has not ended in time")

// said keeps what is written, and has who writes more than any answer has ended. It has
// no other method that takes anything: a copy would use that one.
type said struct {
	kept []byte
	stop func()
	over bool
}

// Write implements io.Writer.
func (s *said) Write(b []byte) (int, error) {
	if len(s.kept)+len(b) > maxSaid {
		s.over = true
		s.stop()
		return 0, errSaidTooMuch
	}
	s.kept = append(s.kept, b...)
	return len(b), nil
}

// say runs a command of a runtime and returns what it printed.
func say(ctx context.Context, path string, args ...string) ([]byte, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	out := said{stop: cancel}
	cmd := command(ctx, path, args...)
	cmd.Stdout = &out
	err := finish(ctx, cmd)
	if out.over {
		err = errSaidTooMuch
	}
	if err != nil {
		return nil, err
	}
	return out.kept, nil
}

// command is a command of a runtime, with nothing of this process but what is given to
// it. It ends with ctx, with what it has started in its session.
func command(ctx context.Context, path string, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, path, args...)
	cmd.Env = []string{"PATH=/usr/sbin:/usr/bin:/sbin:/bin"}
	cmd.Dir = "/"
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	cmd.Cancel = func() error { return unix.Kill(-cmd.Process.Pid, unix.SIGKILL) }
	cmd.WaitDelay = time.Second
	return cmd
}

// finish runs a command and says of one that was ended why.
func finish(ctx context.Context, cmd *exec.Cmd) error {
	err := cmd.Run()
	if err != nil && ctx.Err() != nil {
		if errors.Is(ctx.Err(), context.Canceled) {
			return ctx.Err()
		}
		return fmt.Errorf("%w: %w", errHangs, ctx.Err())
	}
	return err
}

// session is a runtime and where it keeps what it knows of one sandbox.
type session struct {
	binary
	state string // its state directory, below the plan's
	log   string // a file of its complaints
}

func newSession(b binary, dir string) session {
	return session{b, filepath.Join(dir, "state"), filepath.Join(dir, "runtime.log")}
}

func (s session) args(verb string, more ...string) []string {
	return append([]string{"--root", s.state, "--log", s.log, "--log-format", "text", verb}, more...)
}

// work runs a command that makes or removes something. What it says goes to its log:
// what it starts has its output, and outlives it.
func (s session) work(ctx context.Context, prepare func(*exec.Cmd), verb string, args ...string) error {
	ctx, cancel := context.WithTimeout(ctx, workTimeout)
	defer cancel()
	cmd := command(ctx, s.path, s.args(verb, append(args, container)...)...)
	if prepare != nil {
		prepare(cmd)
	}
	err := finish(ctx, cmd)
	if err == nil || errors.Is(err, context.Canceled) {
		return err
	}
	return &runtimeError{verb: verb, words: lastWords(s.log), err: err}
}

// look asks for the state of the sandbox.
func (s session) look(ctx context.Context) (state, error) {
	ctx, cancel := context.WithTimeout(ctx, workTimeout)
	defer cancel()
	out, err := say(ctx, s.path, s.args("state", container)...)
	if err != nil {
		return state{}, &runtimeError{verb: "state", words: lastWords(s.log), err: err}
	}
	st, err := parseState(out)
	if err != nil {
		return state{}, &runtimeError{verb: "state", err: err}
	}
	return st, nil
}

// runtimeError is a command of a runtime that failed.
type runtimeError struct {
	verb  string
	words string // what its log says, bounded and quoted when shown
	err   error
}

// Error implements error.
func (e *runtimeError) Error() string {
	text := "runtime " + e.verb + ": " + e.err.Error()
	if e.words != "" {
		text += fmt.Sprintf(": it said %q", e.words)
	}
	return text
}

// Unwrap returns what went wrong.
func (e *runtimeError) Unwrap() error { return e.err }

// lastWords is the end of a runtime's log, a line or two.
func lastWords(path string) string {
	f, err := os.Open(path)
	if err != nil {
		return ""
	}
	defer f.Close()
	const most = 600
	if end, err := f.Seek(0, 2); err == nil && end > most {
		_, err = f.Seek(-most, 2)
		if err != nil {
			return ""
		}
	} else if _, err := f.Seek(0, 0); err != nil {
		return ""
	}
	b := make([]byte, most)
	n, _ := f.Read(b)
	return strings.TrimSpace(strings.ToValidUTF8(string(b[:n]), "?"))
}
