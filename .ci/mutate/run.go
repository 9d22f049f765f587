package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"
)

// verdict is what the tests said of a change.
type verdict int

const (
	unnoticed verdict = iota
	noticed
	invalid // does not compile
)

// judge runs the tests of a package over a change.
func (r *runner) judge(ctx context.Context, t target, c change) (verdict, error) {
	dir, err := os.MkdirTemp("", "mutate-")
	if err != nil {
		return 0, err
	}
	defer os.RemoveAll(dir)
	original, err := filepath.Abs(c.path)
	if err != nil {
		return 0, err
	}
	changed := filepath.Join(dir, "changed.go")
	overlay, err := json.Marshal(map[string]any{"Replace": map[string]string{original: changed}})
	if err != nil {
		return 0, err
	}
	file := filepath.Join(dir, "overlay.json")
	if err := errors.Join(os.WriteFile(changed, c.source, 0o600), os.WriteFile(file, overlay, 0o600)); err != nil {
		return 0, err
	}
	if _, err := goTool(ctx, r.limit, "build", "-overlay", file, "./"+t.dir); err != nil {
		return invalid, nil
	}
	_, err = goTool(ctx, r.limit, t.args("-overlay", file)...)
	if ctx.Err() != nil {
		return 0, context.Cause(ctx)
	}
	if err != nil {
		return noticed, nil
	}
	return unnoticed, nil
}

// clean runs the tests of a package as it is.
func (r *runner) clean(ctx context.Context, t target) error {
	out, err := goTool(ctx, 10*r.limit, t.args()...)
	if err != nil {
		return fmt.Errorf("%w\n%s", err, out)
	}
	return nil
}

// args are those of go test for what should notice a change of the target.
func (t target) args(flags ...string) []string {
	args := append([]string{"test", "-short", "-failfast", "-vet=off"}, flags...)
	tests := t.tests
	if len(tests) == 0 {
		tests = []string{t.dir}
	}
	for _, dir := range tests {
		args = append(args, "./"+dir)
	}
	return args
}

func goTool(ctx context.Context, limit time.Duration, args ...string) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	cmd := exec.CommandContext(ctx, "go", args...)
	// Children of a test that hangs end with it, or this would wait for them.
	setGroup(cmd)
	cmd.WaitDelay = 5 * time.Second
	return cmd.CombinedOutput()
}

// equivalents are changes that mean nothing: file, kind and line of source, with a
// reason for each.
type equivalents map[[3]string]string

// readEquivalent reads lines of the form
//
//	file: kind: line of source # reason
//
// of which those that begin with # and empty ones are comments.
func readEquivalent(path string) (equivalents, error) {
	f, err := os.Open(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	defer f.Close()
	all := equivalents{}
	lines := bufio.NewScanner(f)
	for n := 1; lines.Scan(); n++ {
		line := strings.TrimSpace(lines.Text())
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		i := strings.LastIndex(line, " # ")
		parts := strings.SplitN(line[:max(i, 0)], ": ", 3)
		if i < 0 || len(parts) != 3 {
			return nil, fmt.Errorf("%s:%d: want FILE: KIND: LINE # REASON", path, n)
		}
		all[[3]string(parts)] = line[i+3:]
	}
	return all, lines.Err()
}

func (e equivalents) has(c change) bool {
	_, ok := e[[3]string{c.path, c.kind, c.text}]
	return ok
}
