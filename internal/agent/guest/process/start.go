//go:build linux

package process

import (
	"errors"
	"os"
	"path"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/agent/guest/identity"
	"github.com/cloche-dev/cloche/internal/agent/guest/launcher"
	"github.com/cloche-dev/cloche/internal/agent/wire"
)

var (
	errStopping = api.Errorf(api.CodeState, "the sandbox is being stopped: nothing new is started")
	errKilled   = errors.New("the launcher was killed")
)

// defaultPath is searched when the environment has no PATH.
const defaultPath = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

// maxIDLen bounds the names of processes.
const maxIDLen = 128

func toStrings(bs []api.Bytes) []string {
	ss := make([]string, len(bs))
	for i, b := range bs {
		ss[i] = string(b)
	}
	return ss
}

// defaultTerm is the kind of a terminal whose caller does not say which it has: the one that
// every image with a terminal database knows.
const defaultTerm = "xterm"

// prepare checks a request, in order: who, what, with which environment, where.
func (ps *Manager) prepare(x *wire.Exec) (launch, error) {
	l := launch{argv: toStrings(x.Argv), env: toStrings(x.Env), cwd: string(x.Cwd), combined: x.Combined || x.TTY}
	if x.ID == "" || len(x.ID) > maxIDLen {
		return l, api.Invalid("exec_id", "a process needs a name of 1 to %d bytes, not %d", maxIDLen, len(x.ID))
	}
	if len(l.argv) == 0 || l.argv[0] == "" {
		return l, api.Invalid("argv", "argv names no program").WithHint(`the first element is the program: ["ls", "-l"]`)
	}
	for i, a := range l.argv {
		if strings.IndexByte(a, 0) >= 0 {
			return l, api.Invalid("argv", "argument %d holds a NUL byte, which no program can be given", i)
		}
	}
	for _, e := range l.env {
		name, _, ok := strings.Cut(e, "=")
		if !ok || name == "" {
			return l, api.Invalid("env", "%.80q is no variable of the environment", e).WithHint("each is NAME=value")
		}
		if strings.IndexByte(e, 0) >= 0 {
			return l, api.Invalid("env", "the value of %.80q holds a NUL byte, which no program can be given", name)
		}
	}
	if l.cwd == "" {
		l.cwd = "/"
	}
	if !strings.HasPrefix(l.cwd, "/") {
		return l, api.Invalid("cwd", "working directory %.200q is relative", l.cwd).WithHint("it is an absolute path inside the sandbox")
	}
	if strings.IndexByte(l.cwd, 0) >= 0 {
		return l, api.Invalid("cwd", "the working directory holds a NUL byte")
	}
	var err error
	if l.user, err = ps.users.Lookup(x.User); err != nil {
		return l, err
	}
	if l.user.Shown != nil {
		ps.users.Adopt(l.cwd, l.user.Shown.UID)
	}
	l.env = l.user.Environment(l.env)
	l.paths = candidates(l.argv[0], expandPath(l.env))
	if x.TTY && !identity.HasVar(l.env, "TERM") {
		l.env = append(l.env, "TERM="+defaultTerm)
	}
	return l, nil
}

// expandPath puts the home in the place of ~ at the beginning of directories of PATH, as
// shells do when it is set, and returns the PATH to search.
func expandPath(env []string) string {
	value := func(name string) (string, int) {
		for i := len(env) - 1; i >= 0; i-- {
			if v, ok := strings.CutPrefix(env[i], name+"="); ok {
				return v, i
			}
		}
		return "", -1
	}
	search, at := value("PATH")
	if at < 0 {
		return defaultPath
	}
	home, _ := value("HOME")
	var dirs []string
	for dir := range strings.SplitSeq(search, ":") {
		if rest, ok := strings.CutPrefix(dir, "~/"); ok {
			if !strings.HasPrefix(home, "/") {
				continue
			}
			dir = strings.TrimRight(home, "/") + "/" + rest
		}
		dirs = append(dirs, dir)
	}
	search = strings.Join(dirs, ":")
	env[at] = "PATH=" + search
	return search
}

// candidates are the paths to try for a program, as a shell would.
func candidates(name, search string) []string {
	if strings.Contains(name, "/") {
		return []string{name}
	}
	var paths []string
	for dir := range strings.SplitSeq(search, ":") {
		if dir == "" {
			dir = "."
		}
		paths = append(paths, dir+"/"+name)
	}
	return paths
}

// startError classifies why a program was not executed.
func startError(err error, l launch) error {
	if _, ok := errors.AsType[*api.Error](err); ok {
		return err
	}
	le, ok := errors.AsType[*launchError](err)
	if !ok {
		if errors.Is(err, unix.EAGAIN) || errors.Is(err, unix.ENOMEM) || errors.Is(err, unix.EMFILE) {
			return api.Errorf(api.CodeNoCapacity, "the sandbox has no resources for another process: %w", err)
		}
		return internal("start process", err)
	}
	switch le.at {
	case launcher.StageCwd:
		return cwdError(l.cwd, le.err)
	case launcher.StageIDs:
		if l.user.Shown != nil {
			return noNumber(l.user, le.err)
		}
		if errors.Is(le.err, unix.EINVAL) {
			return api.Invalid("user", "uid %d or gid %d does not exist in this sandbox", l.user.UID, l.user.GID)
		}
	case launcher.StageExec:
		return execError(l, le.err)
	}
	return internal("start process", err)
}

func cwdError(cwd string, err error) error {
	what := "cannot be entered"
	switch {
	case errors.Is(err, unix.ENOENT):
		what = "does not exist"
	case errors.Is(err, unix.ENOTDIR):
		what = "is not a directory"
	case errors.Is(err, unix.EACCES):
		what = "may not be entered by this user"
	}
	return api.Invalid("cwd", "working directory %.200q %s", cwd, what).WithCause(err)
}

func execError(l launch, err error) error {
	name := l.argv[0]
	// What is there under the name, seen from where the program would have run.
	found := ""
	for _, p := range l.paths {
		if !strings.HasPrefix(p, "/") {
			p = path.Join(l.cwd, p)
		}
		if _, serr := os.Lstat(p); serr == nil {
			found = p
			break
		}
	}
	switch {
	case (errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ENOTDIR)) && found == "":
		return api.Errorf(api.CodeCommandNotFound, "program %.200q does not exist in this sandbox: %w", name, err)
	case errors.Is(err, unix.ENOENT), errors.Is(err, unix.ENOTDIR):
		return api.Errorf(api.CodeCommandNotFound,
			"program %.200q exists as %.200q, but what it needs to run does not: its interpreter or dynamic loader: %w", name, found, err).
			WithHint("look at its first line (#!) or at the libraries of the image")
	case errors.Is(err, unix.EACCES):
		what := "may not be executed by this user"
		if st, serr := os.Stat(found); serr == nil && st.IsDir() {
			what = "is a directory"
		} else if serr == nil && st.Mode()&0o111 == 0 {
			what = "is not executable"
		}
		return api.Errorf(api.CodeNotExecutable, "program %.200q %s: %w", name, what, err)
	case errors.Is(err, unix.E2BIG):
		return tooBig(l, err)
	case errors.Is(err, unix.ENOMEM), errors.Is(err, unix.EAGAIN):
		return api.Errorf(api.CodeNoCapacity, "the sandbox has no resources to execute %.200q: %w", name, err)
	default:
		return api.Errorf(api.CodeNotExecutable, "program %.200q cannot be executed: %w", name, err).
			WithHint("it is neither a program for this machine nor a script with a #! line")
	}
}

// tooBig blames the larger of arguments and environment.
func tooBig(l launch, err error) error {
	size := func(ss []string) (n int) {
		for _, s := range ss {
			n += len(s) + 1
		}
		return n
	}
	field, n := "argv", size(l.argv)
	if m := size(l.env); m > n {
		field, n = "env", m
	}
	e := api.Errorf(api.CodeTooLarge, "%s holds %d bytes, more than the kernel gives a program: %w", field, n, err).
		WithHint("pass large data as a file or on stdin")
	e.Field = field
	return e
}

// internal is an error of the agent or its kernel.
func internal(what string, err error) *api.Error {
	return api.Errorf(api.CodeInternal, "%s: %w", what, err)
}

// signalName names a signal as in api.Result.
func signalName(s unix.Signal) string {
	if name := api.SignalName(int(s)); name != "" {
		return name
	}
	return "RT" + strconv.Itoa(int(s)-34)
}
