//go:build linux

// Package nsjail is the engine of operators who have standardised on nsjail: its binary
// isolates. What package native makes for a sandbox of its own (images, mounts, ids,
// cgroups, the link, records) it makes for this one too; namespaces, the root,
// capabilities and /proc are nsjail's.
package nsjail

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/engine"
	"github.com/cloche-dev/cloche/internal/engine/native"
)

// Name is what requests call this engine.
const Name = "nsjail"

const (
	// askTimeout bounds what the binary is asked for in a probe.
	askTimeout = 5 * time.Second
	// maxAnswer bounds what is read of it.
	maxAnswer = 256 << 10
	mend      = "install nsjail, or set nsjail.path to its binary"
)

// Options configure an Engine.
type Options struct {
	// Program is the binary; empty is the nsjail in PATH. It may come to be there later.
	Program string
	// StateDir, RootsDir and IDsDir are as in package native.
	StateDir, RootsDir, IDsDir string
	// Logger receives what cannot be returned; nil discards it.
	Logger *slog.Logger
}

// Engine is the engine of the nsjail binary.
type Engine struct {
	*native.Engine
	path string
}

var (
	_ engine.Engine = (*Engine)(nil)
	_ engine.Host   = (*Engine)(nil)
)

// New makes an engine. It starts nothing.
func New(o Options) (*Engine, error) {
	e := &Engine{path: cmp.Or(o.Program, Name)}
	var err error
	e.Engine, err = native.New(native.Options{
		StateDir: o.StateDir, RootsDir: o.RootsDir, IDsDir: o.IDsDir, Logger: o.Logger,
		Jail: &native.Jail{Name: Name, Program: e.program, Argv: argv},
	})
	if err != nil {
		return nil, err
	}
	return e, nil
}

// find finds the binary, which may have come or gone since the last time.
func (e *Engine) find() (string, error) {
	path, err := exec.LookPath(e.path)
	if err == nil {
		path, err = filepath.Abs(path)
	}
	if err != nil {
		return "", fmt.Errorf("there is no nsjail binary: %w", err)
	}
	return path, nil
}

// program is find for who asked for a sandbox.
func (e *Engine) program() (string, error) {
	path, err := e.find()
	if err != nil {
		return "", api.Errorf(api.CodeUnavailable, "create sandbox: the nsjail binary is not there").WithHint("%s", mend).WithCause(err)
	}
	return path, nil
}

// Probe implements engine.Engine: of what native needs nsjail needs all, and a binary
// that knows the options which it is called with.
func (e *Engine) Probe(ctx context.Context) engine.Report {
	r := e.Engine.Probe(ctx)
	r.Facts, r.Problems = maps.Clone(r.Facts), slices.Clone(r.Problems)
	path, err := e.find()
	if err == nil {
		r.Facts["binary"] = path
		err = ask(ctx, path)
	}
	if err != nil {
		p := api.Problem{What: err.Error(), Mend: mend}
		r.Problems, r.Usable = append(r.Problems, p), false
	}
	return r
}

// ask has the binary say what it can do. What it answers is foreign: bounded in time and
// size, and nothing of it is shown.
func ask(ctx context.Context, path string) error {
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	cmd := exec.CommandContext(ctx, path, "--help")
	cmd.Env = []string{}
	cmd.WaitDelay = time.Second
	out := &bounded{}
	cmd.Stdout, cmd.Stderr = out, out
	err := cmd.Run()
	switch {
	case ctx.Err() != nil:
		return errors.New("the nsjail binary does not answer")
	case out.over:
		return errors.New("the nsjail binary does not answer as nsjail does")
	}
	if exit, ok := errors.AsType[*exec.ExitError](err); ok && exit.Exited() || err == nil {
		return missing(out.b.String())
	}
	return fmt.Errorf("the nsjail binary does not run: %w", err)
}

// missing is an error that names what a help text does not tell of.
func missing(help string) error {
	var lacks []string
	for _, o := range options() {
		if !slices.Contains(words(help), o) {
			lacks = append(lacks, o)
		}
	}
	if len(lacks) == len(options()) {
		return errors.New("the nsjail binary does not answer as nsjail does")
	}
	if len(lacks) > 0 {
		return fmt.Errorf("the nsjail binary has no %s", strings.Join(lacks, ", "))
	}
	return nil
}

// words are the options in a help text, where each may stand beside its short form.
func words(help string) []string {
	return strings.FieldsFunc(help, func(r rune) bool { return r == ' ' || r == '\n' || r == '\t' || r == '|' })
}

// bounded keeps the beginning of what is written to it.
type bounded struct {
	b    bytes.Buffer
	over bool
}

// Write implements io.Writer. It takes everything, and ends the program that goes on.
func (w *bounded) Write(p []byte) (int, error) {
	if w.b.Len()+len(p) > maxAnswer {
		w.over = true
		return 0, io.ErrShortWrite
	}
	return w.b.Write(p)
}
