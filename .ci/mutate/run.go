package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// verdict is what the tests said of a change.
type verdict int

const (
	unnoticed verdict = iota
	noticed
	late    // the tests did not end in their time: noticed too, and counted apart
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
	out, err := goTool(ctx, r.limit, t.args("-overlay", file)...)
	switch {
	case ctx.Err() != nil:
		return 0, context.Cause(ctx)
	case err == nil:
		return unnoticed, nil
	case bytes.Contains(out, []byte("[build failed]")):
		return invalid, nil
	case errors.Is(err, context.DeadlineExceeded):
		return late, nil
	}
	return noticed, nil
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
	// A test that is slow notices changes too.
	cmd.Env = append(os.Environ(), "CLOCHE_TEST_SLOW=1")
	// Children of a test that hangs end with it, or this would wait for them.
	setGroup(cmd)
	cmd.WaitDelay = 5 * time.Second
	out, err := cmd.CombinedOutput()
	if err != nil && ctx.Err() != nil {
		err = ctx.Err()
	}
	return out, err
}

// equivalents are changes that mean nothing, by their keys, with a reason for each.
type equivalents map[string]string

// readEquivalent reads lines of the form
//
//	file: function: kind: line of source # reason
//
// as a run prints them, without the number of the line. Where a function has the same
// change on the same text more than once, the kind ends with which of them it is. Lines
// that begin with # and empty ones are comments.
func readEquivalent(file string) (equivalents, error) {
	f, err := os.Open(file)
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
		if i < 0 || len(strings.SplitN(line[:i], ": ", 4)) != 4 {
			return nil, fmt.Errorf("%s:%d: want FILE: FUNCTION: KIND: LINE # REASON", file, n)
		}
		if _, twice := all[line[:i]]; twice {
			return nil, fmt.Errorf("%s:%d: it is listed twice", file, n)
		}
		all[line[:i]] = line[i+3:]
	}
	return all, lines.Err()
}

func (e equivalents) has(c change) bool {
	_, ok := e[c.key()]
	return ok
}

// stale are the equivalents of a package that are none of its changes.
func (e equivalents) stale(dir string, changes []change) []string {
	there := map[string]bool{}
	for _, c := range changes {
		there[c.key()] = true
	}
	var gone []string
	for key := range e {
		if file, _, _ := strings.Cut(key, ": "); path.Dir(file) == dir && !there[key] {
			gone = append(gone, key)
		}
	}
	slices.Sort(gone)
	return gone
}
