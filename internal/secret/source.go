//go:build linux || darwin

package secret

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// execTime is how long a program may take.
	execTime = 10 * time.Second
	// execPath is the PATH of one: it may call others.
	execPath = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
)

func readEnv(name string) (string, error) {
	v, ok := os.LookupEnv(name)
	if !ok {
		return "", errors.New("the daemon has no such variable")
	}
	return v, nil
}

// readFile reads a file of which it is sure, by its descriptor, that nobody else
// reads or writes it.
func readFile(path string) (string, error) {
	// A name that leads elsewhere is the operator's; what it leads to is what counts.
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC|unix.O_NONBLOCK|unix.O_NOCTTY, 0)
	if err != nil {
		return "", &os.PathError{Op: "open", Path: path, Err: err}
	}
	f := os.NewFile(uintptr(fd), path)
	defer f.Close()
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return "", &os.PathError{Op: "stat", Path: path, Err: err}
	}
	switch {
	case st.Mode&unix.S_IFMT != unix.S_IFREG:
		return "", fmt.Errorf("%s is no plain file", path)
	case st.Uid != uint32(os.Geteuid()):
		return "", fmt.Errorf("%s belongs to uid %d, and the daemon is %d", path, st.Uid, os.Geteuid())
	case st.Mode&0o077 != 0:
		return "", fmt.Errorf("%s has mode %#o, which lets others at it: it must be 0600", path, st.Mode&0o7777)
	case st.Size > maxValue+2:
		return "", fmt.Errorf("%s has %d bytes, at most %d are read", path, st.Size, maxValue)
	}
	b, err := io.ReadAll(io.LimitReader(f, maxValue+3))
	if err != nil {
		return "", err
	}
	return string(b), nil
}

// bounded keeps so many bytes, and fails with the next.
type bounded struct {
	bytes.Buffer
	left int
}

// Write implements io.Writer.
func (b *bounded) Write(p []byte) (int, error) {
	if b.left -= len(p); b.left < 0 {
		return 0, errors.New("it wrote too much")
	}
	return b.Buffer.Write(p)
}

// readExec runs a program and reads what it writes. It has an environment of its
// own, and a session that ends with it.
func readExec(ctx context.Context, argv []string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, execTime)
	defer cancel()
	out := &bounded{left: maxValue + 2}
	cmd := exec.CommandContext(ctx, argv[0], argv[1:]...)
	cmd.Env, cmd.Dir, cmd.Stdout = []string{execPath, "LANG=C.UTF-8", "HOME=/nonexistent"}, "/", out
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	cmd.Cancel = func() error { return unix.Kill(-cmd.Process.Pid, unix.SIGKILL) }
	cmd.WaitDelay = time.Second
	err := cmd.Run()
	if cmd.Process != nil {
		// What it left in its session goes too; mostly there is nothing any more.
		_ = unix.Kill(-cmd.Process.Pid, unix.SIGKILL)
	}
	if ctx.Err() != nil {
		return "", fmt.Errorf("%s took longer than %s", argv[0], execTime)
	}
	if err != nil {
		// What it wrote to its error stream may hold the value.
		return "", fmt.Errorf("%s: %w", argv[0], err)
	}
	return out.String(), nil
}
