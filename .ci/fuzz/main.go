// Command fuzz runs every fuzz target of the module for a while, two of them side by
// side. A finding ends nothing: the others follow, and the end names what was found.
package main

import (
	"bytes"
	"context"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"
)

// sideBySide is how many packages are fuzzed at a time, with one worker each.
const sideBySide = 2

func main() {
	each := flag.Duration("time", 2*time.Second, "how long each target is fuzzed")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, os.Stdout, *each); err != nil {
		fmt.Fprintln(os.Stderr, err)
		stop()
		os.Exit(1)
	}
}

// run fuzzes all packages and writes what it did in the order of their names.
func run(ctx context.Context, w io.Writer, each time.Duration) error {
	packages, err := list(ctx)
	if err != nil {
		return err
	}
	dir, err := os.MkdirTemp("", "fuzz")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	cache, err := output(ctx, "go", "env", "GOCACHE")
	if err != nil {
		return err
	}
	f := &fuzzer{binaries: dir, corpora: filepath.Join(strings.TrimSpace(string(cache)), "fuzz"), each: each}

	// Those with the most targets begin: one of them that began last would be waited for alone.
	order := slices.Clone(packages)
	slices.SortStableFunc(order, func(a, b *pkg) int { return len(b.targets) - len(a.targets) })
	next := make(chan *pkg)
	var wg sync.WaitGroup
	for range sideBySide {
		wg.Go(func() {
			for p := range next {
				f.fuzz(ctx, p)
				close(p.done)
			}
		})
	}
	wg.Go(func() {
		defer close(next)
		for _, p := range order {
			next <- p
		}
	})
	var found []string
	for _, p := range packages {
		<-p.done
		_, _ = w.Write(p.said.Bytes())
		found = append(found, p.found...)
	}
	wg.Wait()
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	if len(found) > 0 {
		return fmt.Errorf("fuzzing found something: %s", strings.Join(found, " "))
	}
	return nil
}

// fuzzer is what the packages have in common.
type fuzzer struct {
	binaries string // a directory for them
	corpora  string // where go test keeps what it found interesting
	each     time.Duration
}

// fuzz builds a package's tests once and runs its targets one after the other.
func (f *fuzzer) fuzz(ctx context.Context, p *pkg) {
	if p.plain {
		// Some functions of gVisor's are at the limit of their stack: with the fuzzer's
		// counters in them they do not compile.
		fmt.Fprintf(&p.said, "%s: the seeds only, as tests, for gVisor cannot be instrumented: %s\n", p.path, strings.Join(p.targets, " "))
		return
	}
	bin := filepath.Join(f.binaries, strings.ReplaceAll(p.path, "/", "_")+".test")
	if out, err := command(ctx, p.dir, "go", "test", "-c", "-fuzz", ".", "-o", bin, ".").CombinedOutput(); err != nil {
		fmt.Fprintf(&p.said, "%s does not build: %v\n%s", p.path, err, out)
		p.found = append(p.found, p.path)
		return
	}
	defer os.Remove(bin)
	for _, name := range p.targets {
		fmt.Fprintf(&p.said, "%s %s\n", p.path, name)
		cmd := command(ctx, p.dir, bin, "-test.run", "^$", "-test.fuzz", "^"+name+"$", "-test.fuzztime", f.each.String(),
			"-test.fuzzminimizetime", "5x", "-test.parallel", "1", "-test.fuzzcachedir", filepath.Join(f.corpora, p.path),
			"-test.paniconexit0", "-test.timeout", "10m")
		out, err := cmd.CombinedOutput()
		switch v := judge(string(out), err); v {
		case fine:
		case late:
			fmt.Fprintln(&p.said, "    its time ended in mid-run")
		case failed:
			_, _ = p.said.Write(out)
			fmt.Fprintln(&p.said, err)
			p.found = append(p.found, name)
		}
	}
}

// verdict is what became of one target.
type verdict int

const (
	fine verdict = iota
	late
	failed
)

// judge tells a finding from the end of the time. The fuzzer reports the end of its own
// time as a failure when a worker is just then at work; it has found nothing then, and
// writes no input. One that was built without counters has fuzzed nothing.
func judge(out string, err error) verdict {
	switch {
	case strings.Contains(out, "was not built with coverage instrumentation"):
		return failed
	case err == nil:
		return fine
	case strings.Contains(out, "Failing input written"):
		return failed
	}
	for line := range strings.Lines(out) {
		if strings.HasPrefix(strings.TrimLeft(line, " "), "context deadline exceeded") {
			return late
		}
	}
	return failed
}

// command is a command that ends with the context.
func command(ctx context.Context, dir, name string, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Dir = dir
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
	cmd.WaitDelay = 10 * time.Second
	return cmd
}

// output is what a command prints; when it fails, what it complains of is the error.
func output(ctx context.Context, name string, args ...string) ([]byte, error) {
	cmd := command(ctx, "", name, args...)
	var complaints bytes.Buffer
	cmd.Stderr = &complaints
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("%s %s: %w\n%s", name, strings.Join(args, " "), err, complaints.Bytes())
	}
	return out, nil
}
