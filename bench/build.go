//go:build linux

package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"time"
)

// buildFacts are about the binary and the making of it.
type buildFacts struct {
	BinaryMB    float64 `json:"binary_mb"`
	AgentMB     float64 `json:"agent_mb"`
	ColdSeconds float64 `json:"cold_seconds,omitempty"`
	WarmSeconds float64 `json:"warm_seconds"`
}

// product builds the binary once, as a user would, and takes a copy: what others
// build in this tree meanwhile changes nothing here.
func (b *bench) product(ctx context.Context) error {
	if _, err := os.Stat(b.bin); err == nil {
		return nil
	}
	if _, err := b.make(ctx); err != nil {
		return err
	}
	in, err := os.Open(filepath.Join(b.root, "bin", "cloche"))
	if err != nil {
		return fmt.Errorf("copy the binary: %w", err)
	}
	defer in.Close()
	out, err := os.OpenFile(b.bin, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o755)
	if err != nil {
		return fmt.Errorf("copy the binary: %w", err)
	}
	if _, err := io.Copy(out, in); err != nil {
		out.Close()
		return fmt.Errorf("copy the binary: %w", err)
	}
	return out.Close()
}

// make is `make build` with more of the environment; it returns how long it took.
func (b *bench) make(ctx context.Context, env ...string) (time.Duration, error) {
	cmd := command(ctx, "nice", "make", "-s", "build")
	cmd.Dir, cmd.Env = b.root, append(os.Environ(), env...)
	began := time.Now()
	if out, err := cmd.CombinedOutput(); err != nil {
		return 0, fmt.Errorf("make build: %w: %s", err, tail(string(out)))
	}
	return time.Since(began), nil
}

// goBuild builds a program of this module, static.
func (b *bench) goBuild(ctx context.Context, bin, pkg string) error {
	cmd := command(ctx, "nice", "go", "build", "-trimpath", "-tags=cloche_embed", "-ldflags=-s -w", "-o", bin, pkg)
	cmd.Dir, cmd.Env = b.root, append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("build %s: %w: %s", pkg, err, tail(string(out)))
	}
	return nil
}

// build times the build and takes the sizes.
func (b *bench) build(ctx context.Context) error {
	var f buildFacts
	if b.cold {
		cache := filepath.Join(b.dir, "gocache")
		took, err := b.make(ctx, "GOCACHE="+cache)
		if err != nil {
			return err
		}
		f.ColdSeconds = took.Seconds()
		if err := os.RemoveAll(cache); err != nil {
			return fmt.Errorf("remove the build cache: %w", err)
		}
	}
	if _, err := b.make(ctx); err != nil { // fills the usual cache
		return err
	}
	agent := filepath.Join(b.root, "internal", "agent", "embed", "bin", "cloche-agent-linux-"+runtime.GOARCH)
	for _, path := range []string{filepath.Join(b.root, "bin", "cloche"), agent} {
		if err := os.Remove(path); err != nil {
			return fmt.Errorf("time a warm build: %w", err)
		}
	}
	took, err := b.make(ctx)
	if err != nil {
		return err
	}
	f.WarmSeconds = took.Seconds()
	if err := b.product(ctx); err != nil {
		return err
	}
	for path, mb := range map[string]*float64{b.bin: &f.BinaryMB, agent: &f.AgentMB} {
		fi, err := os.Stat(path)
		if err != nil {
			return fmt.Errorf("take sizes: %w", err)
		}
		*mb = float64(fi.Size()) / 1e6
	}
	b.report.Build = &f
	return nil
}
