//go:build cgo

package main

import (
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
)

// This is the whole program when cgo is on, which it is by default on a machine
// with a C compiler. A sandbox's kernel is this executable, started again in an
// empty root directory where no dynamic loader is, so the real program must be
// linked without cgo. Nothing in a module can ask go run for that; this asks go
// build, keeps the result, and becomes it.

func main() {
	if err := becomeStatic(); err != nil {
		fmt.Fprintln(os.Stderr, "cloche:", err)
		fmt.Fprintln(os.Stderr, "hint: this executable was built with cgo; build it with CGO_ENABLED=0")
		os.Exit(125)
	}
}

// becomeStatic builds the real program, unless that is done, and executes it.
func becomeStatic() error {
	source, err := sourceDir()
	if err != nil {
		return err
	}
	cache, err := os.UserCacheDir()
	if err != nil {
		return fmt.Errorf("find a place for the static binary: %w", err)
	}
	// Each checkout has a binary of its own.
	sum := fnv.New64a()
	sum.Write([]byte(source))
	exe := filepath.Join(cache, "cloche", fmt.Sprintf("static-%x", sum.Sum64()), "cloche")
	if _, err := os.Stat(exe); err != nil {
		fmt.Fprintln(os.Stderr, "cloche: building the static binary, once; this takes a minute or two")
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	// What it says of itself is what this would.
	build := exec.CommandContext(ctx, goTool(), "build", "-buildvcs=false", "-ldflags=-X main.release="+version(), "-o", exe, ".")
	build.Dir, build.Env = source, append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		return fmt.Errorf("build the static binary: %w\n%s", err, strings.TrimSpace(string(out)))
	}
	stop()
	return fmt.Errorf("execute the static binary: %w", syscall.Exec(exe, os.Args, os.Environ()))
}

// sourceDir is where this file was when it was compiled. What is built from it
// runs as this user, so it must be this user's, or root's, to write.
func sourceDir() (string, error) {
	_, file, _, _ := runtime.Caller(0)
	if !filepath.IsAbs(file) {
		return "", errors.New("it is not known where the source is")
	}
	var st syscall.Stat_t
	if err := syscall.Stat(file, &st); err != nil {
		return "", fmt.Errorf("find the source: %w", err)
	}
	if st.Uid != 0 && int(st.Uid) != os.Geteuid() {
		return "", fmt.Errorf("the source belongs to uid %d, and this is uid %d", st.Uid, os.Geteuid())
	}
	return filepath.Dir(file), nil
}

// goTool is the go command that the user has, or the one that compiled this.
func goTool() string {
	if path, err := exec.LookPath("go"); err == nil {
		return path
	}
	return filepath.Join(runtime.GOROOT(), "bin", "go")
}
