package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/creack/pty"
)

// Size of the terminal, and times of the simulated typing.
const (
	cols, rows  = 92, 17 // no word of the output wraps in the middle
	firstPause  = 600 * time.Millisecond
	keyPause    = 32 * time.Millisecond
	enterPause  = 300 * time.Millisecond
	readPause   = 1400 * time.Millisecond
	commandTime = 30 * time.Second
)

// command is a line to type, and the exit status that it must have.
type command struct {
	line   string
	status int
}

// readCommands reads lines of a status and a command. Lines that start with # are comments.
func readCommands(path string) (cs []command, err error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	for line := range strings.Lines(string(text)) {
		if line = strings.TrimSpace(line); line == "" || line[0] == '#' {
			continue
		}
		status, rest, _ := strings.Cut(line, " ")
		n, err := strconv.Atoi(status)
		if err != nil || rest == "" {
			return nil, fmt.Errorf("%s: %q is not an exit status and a command", path, line)
		}
		cs = append(cs, command{rest, n})
	}
	return cs, nil
}

// recorder runs commands and keeps what a terminal gets.
type recorder struct {
	dir   string // private to the recording, with everything that cloche keeps
	env   []string
	clock time.Duration
	cast  cast
}

// record runs the commands and returns the recording. The daemon and its sandboxes end
// with it.
func record(ctx context.Context, binary string, commands []command) (_ *cast, err error) {
	binary, err = filepath.Abs(binary)
	if err != nil {
		return nil, err
	}
	dir, err := os.MkdirTemp("", "recording")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	for _, sub := range []string{"bin", "home", "work"} {
		if err := os.Mkdir(filepath.Join(dir, sub), 0o700); err != nil {
			return nil, err
		}
	}
	if err := os.Symlink(binary, filepath.Join(dir, "bin", "cloche")); err != nil {
		return nil, err
	}
	r := &recorder{dir: dir, cast: cast{header: header{Version: 2, Width: cols, Height: rows, Title: "cloche"}}, env: []string{
		"PATH=" + filepath.Join(dir, "bin") + string(os.PathListSeparator) + os.Getenv("PATH"),
		"HOME=" + filepath.Join(dir, "work"), "CLOCHE_HOME=" + filepath.Join(dir, "home"),
		"TERM=xterm-256color", "LANG=C.UTF-8",
	}}
	stop, err := r.serve(ctx, binary)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, stop()) }()

	r.put("\x1b[32m$\x1b[0m ")
	r.clock += firstPause
	for _, c := range commands {
		r.enter(c.line)
		if err := r.exec(ctx, c); err != nil {
			return nil, err
		}
		r.put("\x1b[32m$\x1b[0m ")
		r.clock += readPause
	}
	return &r.cast, r.leaks()
}

// serve starts a daemon. The function that it returns removes the sandboxes and ends it.
func (r *recorder) serve(ctx context.Context, binary string) (stop func() error, err error) {
	daemon := exec.CommandContext(ctx, binary, "serve")
	daemon.Env, daemon.Dir = r.env, r.dir
	daemon.Cancel = func() error { return daemon.Process.Signal(os.Interrupt) }
	daemon.WaitDelay = 10 * time.Second
	log, err := os.Create(filepath.Join(r.dir, "daemon.log"))
	if err != nil {
		return nil, err
	}
	defer log.Close()
	daemon.Stdout, daemon.Stderr = log, log
	if err := daemon.Start(); err != nil {
		return nil, err
	}
	stop = func() error {
		_, err := r.sh(context.WithoutCancel(ctx), "cloche ls --all -o name | xargs -r cloche rm -f")
		daemon.Process.Signal(os.Interrupt)
		return errors.Join(err, daemon.Wait())
	}
	for range 100 {
		if _, err = r.sh(ctx, "cloche ls"); err == nil {
			return stop, nil
		}
		time.Sleep(100 * time.Millisecond)
	}
	said, _ := os.ReadFile(log.Name())
	return nil, fmt.Errorf("the daemon does not answer: %w\n%s", errors.Join(err, stop()), said)
}

// sh runs a command that is not recorded.
func (r *recorder) sh(ctx context.Context, line string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, commandTime)
	defer cancel()
	c := exec.CommandContext(ctx, "sh", "-c", line)
	c.Env, c.Dir = r.env, filepath.Join(r.dir, "work")
	out, err := c.CombinedOutput()
	if err != nil {
		err = fmt.Errorf("%s: %w: %s", line, err, out)
	}
	return string(out), err
}

// put adds output at the current time.
func (r *recorder) put(text string) {
	r.cast.events = append(r.cast.events, event{r.clock.Round(time.Millisecond), text})
}

// enter types a line. Its comment is grey.
func (r *recorder) enter(line string) {
	code := len(line)
	if i := strings.Index(line, " # "); i >= 0 {
		code = i + 1
	}
	for i, c := range line {
		if i == code {
			// A comment is for the reader: it appears at once.
			r.put("\x1b[90m" + line[code:] + "\x1b[0m")
			break
		}
		r.put(string(c))
		r.clock += keyPause
	}
	r.clock += enterPause
	r.put("\r\n")
}

// exec runs a command in a terminal and adds its output, with the times.
func (r *recorder) exec(ctx context.Context, c command) error {
	ctx, cancel := context.WithTimeout(ctx, commandTime)
	defer cancel()
	sh := exec.CommandContext(ctx, "sh", "-c", c.line)
	sh.Env, sh.Dir = r.env, filepath.Join(r.dir, "work")
	began, start := time.Now(), r.clock
	f, err := pty.StartWithSize(sh, &pty.Winsize{Rows: rows, Cols: cols})
	if err != nil {
		return err
	}
	defer f.Close()
	var out, rest []byte
	for buf := make([]byte, 4096); ; {
		n, err := f.Read(buf)
		out = append(out, buf[:n]...)
		rest = append(rest, buf[:n]...)
		if whole := wholeRunes(rest); whole > 0 {
			r.clock = start + time.Since(began)
			r.put(string(rest[:whole]))
			rest = rest[whole:]
		}
		if err != nil { // EIO, when the last process has closed the terminal
			break
		}
	}
	if err := sh.Wait(); sh.ProcessState.ExitCode() != c.status {
		return fmt.Errorf("%s: %v, want status %d\n%s", c.line, err, c.status, out)
	}
	r.clock = start + time.Since(began)
	return nil
}

// wholeRunes is the length of p without a rune that is cut at the end.
func wholeRunes(p []byte) int {
	for i := 1; i < utf8.UTFMax && i <= len(p); i++ {
		if at := len(p) - i; utf8.RuneStart(p[at]) {
			if !utf8.FullRune(p[at:]) {
				return at
			}
			break
		}
	}
	return len(p)
}

// leaks fails if the recording names this machine, its user or their directories.
func (r *recorder) leaks() error {
	text := r.cast.text()
	private := []string{r.dir, os.TempDir()}
	if name, err := os.Hostname(); err == nil {
		private = append(private, name)
	}
	if dir, err := os.Getwd(); err == nil {
		private = append(private, dir)
	}
	if u, err := user.Current(); err == nil {
		private = append(private, u.HomeDir)
		if u.Uid != "0" { // root is also the user in a sandbox
			private = append(private, u.Username)
		}
	}
	for _, p := range private {
		if len(p) > 1 && strings.Contains(text, p) {
			return fmt.Errorf("the recording names this machine: %q in\n%s", p, text)
		}
	}
	return nil
}
