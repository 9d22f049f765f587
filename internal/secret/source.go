package secret

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"time"

	"github.com/cloche-dev/cloche/internal/hostfile"
)

const (
	// execTime is how long a program may take.
	execTime = 10 * time.Second
)

func readEnv(name string) (string, error) {
	v, ok := os.LookupEnv(name)
	if !ok {
		return "", errors.New("the daemon has no such variable")
	}
	return v, nil
}

// readFile reads a file after it has made sure, by its descriptor, that no other user
// reads or writes it.
func readFile(path string) (string, error) {
	// A name that leads elsewhere is the operator's; what it leads to is what counts.
	f, err := os.OpenFile(path, os.O_RDONLY|noWait, 0)
	if err != nil {
		return "", err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return "", err
	}
	if !info.Mode().IsRegular() {
		return "", fmt.Errorf("%s is no plain file", path)
	}
	if err := hostfile.Guarded(f); err != nil {
		return "", fmt.Errorf("%s %w", path, err)
	}
	if info.Size() > maxValue+2 {
		return "", fmt.Errorf("%s has %d bytes, at most %d are read", path, info.Size(), maxValue)
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
	cmd.Stdout, cmd.WaitDelay = out, time.Second
	err := runApart(cmd)
	if ctx.Err() != nil {
		return "", fmt.Errorf("%s took longer than %s", argv[0], execTime)
	}
	if err != nil {
		// What it wrote to its error stream may hold the value.
		return "", fmt.Errorf("%s: %w", argv[0], err)
	}
	return out.String(), nil
}
