//go:build linux

package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"sync"
	"time"
)

// imageEngine is our engine with our agent and nothing of the app around: the
// packages above know only the image host yet, which has host directories, and a
// workspace, which is one. It is a process that lives on, like a daemon.
type imageEngine struct {
	bin  string
	args []string
	in   io.WriteCloser
	out  *bufio.Scanner
	stop func() error // may be called twice
	// onSteps, where it is set, is told the steps of each run.
	onSteps func(map[string]float64)
}

// imageAnswer is what it answers.
type imageAnswer struct {
	Output string             `json:"output"`
	Steps  map[string]float64 `json:"steps"`
	Closed bool               `json:"closed"`
	Error  string             `json:"error"`
}

// newImageEngine starts one; with spare, it has a sentry ready for each next sandbox,
// as the daemon has.
func newImageEngine(ctx context.Context, b *bench, image string, warm bool) (*imageEngine, error) {
	if warm {
		return startImageEngine(ctx, b, "image-spare", image, "-spare")
	}
	return startImageEngine(ctx, b, "image", image)
}

// startImageEngine starts one with more flags, in a directory of its own of that name.
func startImageEngine(ctx context.Context, b *bench, name, image string, flags ...string) (*imageEngine, error) {
	e := &imageEngine{bin: filepath.Join(b.dir, "imagerun")}
	dir := filepath.Join(b.dir, name)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("make directory: %w", err)
	}
	if err := b.goBuild(ctx, e.bin, "./bench/imagerun"); err != nil {
		return nil, err
	}
	e.args = []string{
		"-dir", dir, "-root", image, "-memory", strconv.Itoa(limitMemory), "-cpus", strconv.Itoa(limitCPUs),
		"-pids", strconv.Itoa(limitPids), "-tmp", strconv.Itoa(limitTmp), "-shm", strconv.Itoa(limitShm),
	}
	// Not with ctx: it ends when its input does, after it has ended its sandboxes.
	cmd := command(context.WithoutCancel(ctx), slices.Concat([]string{e.bin}, e.args, flags)...)
	cmd.Stderr = os.Stderr
	var err error
	if e.in, err = cmd.StdinPipe(); err != nil {
		return nil, err
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("start imagerun: %w", err)
	}
	e.out = bufio.NewScanner(out)
	e.stop = sync.OnceValue(func() error {
		e.in.Close()
		return cmd.Wait()
	})
	b.defers(e.stop)
	return e, nil
}

// once is a whole process that makes a sandbox, runs argv in it and ends.
func (e *imageEngine) once(ctx context.Context, want string, argv ...string) (measure, error) {
	return process(ctx, want, nil, append(append([]string{e.bin, "-once"}, e.args...), argv...)...)
}

// trace is once with the engine's debug log, from which step is told what each
// step of the create took, in ms.
func (e *imageEngine) trace(ctx context.Context, step func(string, float64), argv ...string) error {
	var log bytes.Buffer
	cmd := command(ctx, append(append([]string{e.bin, "-once", "-trace"}, e.args...), argv...)...)
	cmd.Stderr = &log
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("imagerun: %w: %s", err, tail(log.String()))
	}
	for line := range bytes.Lines(log.Bytes()) {
		var r struct {
			Msg, Step string
			Took      time.Duration
		}
		if err := json.Unmarshal(line, &r); err == nil && r.Msg == "create step" {
			step(r.Step, float64(r.Took.Microseconds())/1000)
		}
	}
	return nil
}

func (e *imageEngine) send(op string, argv ...string) error {
	return e.sendAll(map[string]any{"op": op, "argv": argv})
}

func (e *imageEngine) sendAll(request map[string]any) error {
	line, err := json.Marshal(request)
	if err != nil {
		return err
	}
	_, err = e.in.Write(append(line, '\n'))
	return err
}

func (e *imageEngine) receive() (imageAnswer, error) {
	var a imageAnswer
	if !e.out.Scan() {
		return a, errors.Join(errors.New("imagerun ended"), e.out.Err())
	}
	if err := json.Unmarshal(e.out.Bytes(), &a); err != nil {
		return a, fmt.Errorf("read answer: %w", err)
	}
	if a.Error != "" {
		return a, errors.New(a.Error)
	}
	return a, nil
}

// ask is a request with one answer.
func (e *imageEngine) ask(op string, argv ...string) (imageAnswer, error) {
	if err := e.send(op, argv...); err != nil {
		return imageAnswer{}, err
	}
	return e.receive()
}

// hold makes n sandboxes, some of them at the same time, and says how long that took.
func (e *imageEngine) hold(n, atOnce int) (time.Duration, error) {
	if err := e.sendAll(map[string]any{"op": "hold", "n": n, "at_once": atOnce}); err != nil {
		return 0, err
	}
	a, err := e.receive()
	return time.Duration(a.Steps["hold"] * float64(time.Millisecond)), err
}

// run is one sandbox from its create to its end, which it says apart too.
func (e *imageEngine) run(want string, argv ...string) (measure, error) {
	var m measure
	began := time.Now()
	if err := e.send("run", argv...); err != nil {
		return m, err
	}
	a, err := e.receive()
	if err != nil {
		return m, err
	}
	m.First = time.Since(began)
	if a.Output != want {
		return m, fmt.Errorf("imagerun's sandbox wrote %q, want %q", tail(a.Output), want)
	}
	end, err := e.receive()
	if err != nil {
		return m, err
	}
	m.Total = time.Since(began)
	m.Also = time.Duration(end.Steps["close"] * float64(time.Millisecond))
	if e.onSteps != nil {
		a.Steps["close"] = end.Steps["close"]
		e.onSteps(a.Steps)
	}
	return m, nil
}
