//go:build linux

package vm

import (
	"cmp"
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// patience bounds the life of a machine of a test.
const patience = 9 * time.Minute

// Test runs a machine whose commands are programs of tests, each run with -test.v. Every
// one of their tests becomes a test below t, by the command's name and its own: it fails
// or is skipped with the words that it had in the machine. What is returned are the names
// of those that passed.
func Test(t *testing.T, m Machine) (passed []string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	dir := t.TempDir()
	m.Kernel, m.Init = cmp.Or(m.Kernel, os.Getenv(EnvKernel)), filepath.Join(dir, "guest")
	build := exec.CommandContext(ctx, "go", "build", "-o", m.Init, "github.com/cloche-dev/cloche/test/vm/guest")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("build the machine's first process: %v\n%s", err, out)
	}
	began := time.Now()
	ended, console, err := m.Run(ctx, dir)
	if err != nil {
		t.Fatalf("%v\n%s", err, console)
	}
	t.Logf("%s ran for %v", filepath.Base(kernels(m.Kernel)[0]), time.Since(began).Round(time.Second))
	for i, e := range ended {
		all := results(e.Console)
		// Counted where it does not matter which of them the run reports.
		for _, r := range all {
			if r.verdict == "PASS" {
				passed = append(passed, m.Commands[i].Name+"/"+r.name)
			}
		}
		t.Run(m.Commands[i].Name, func(t *testing.T) {
			for _, r := range all {
				r.report(t)
			}
			if len(all) == 0 || e.Status != 0 && !t.Failed() {
				t.Errorf("it ended with status %d:\n%s", e.Status, e.Console)
			}
		})
	}
	return passed
}

// result is what became of one test in a machine.
type result struct {
	name, verdict, took string
	output              []string
}

// report has a test below t end as this one has.
func (r result) report(t *testing.T) {
	t.Run(r.name, func(t *testing.T) {
		text := strings.Join(r.output, "\n")
		switch r.verdict {
		case "SKIP":
			t.Skip(r.reason())
		case "PASS":
			t.Logf("in %s", r.took)
		case "FAIL":
			t.Errorf("it failed after %s:\n%s", r.took, text)
		default:
			t.Errorf("it did not end:\n%s", text)
		}
	})
}

// reason is what a test that was skipped said last.
func (r result) reason() string {
	for i := len(r.output) - 1; i >= 0; i-- {
		if place, text, ok := strings.Cut(r.output[i], ": "); ok && strings.HasPrefix(r.output[i], "    ") && strings.Contains(place, ".go:") {
			return text
		}
	}
	return "no reason given"
}

// results reads what a program of tests wrote that was run with -test.v.
func results(console string) []*result {
	var all []*result
	byName := map[string]*result{}
	var now *result
	for line := range strings.Lines(console) {
		line = strings.TrimRight(line, "\r\n")
		if verdict, ok := strings.CutPrefix(strings.TrimLeft(line, " "), "--- "); ok {
			if word, rest, ok := strings.Cut(verdict, ": "); ok {
				name, took, _ := strings.Cut(rest, " ")
				if r := byName[name]; r != nil {
					r.verdict, r.took = word, strings.Trim(took, "()")
					continue
				}
			}
		}
		if mark, ok := strings.CutPrefix(line, "=== "); ok {
			if f := strings.Fields(mark); len(f) == 2 {
				now = byName[f[1]]
				if now == nil && f[0] == "RUN" {
					now = &result{name: f[1]}
					byName[f[1]] = now
					all = append(all, now)
				}
				continue
			}
		}
		if now != nil {
			now.output = append(now.output, line)
		}
	}
	return all
}
