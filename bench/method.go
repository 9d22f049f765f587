//go:build linux

package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// The method: all subjects of a group run once in every round, and each round
// begins with the next of them, so whatever else the machine does hits all
// alike. Each subject proves that its work was done. A ratio is one of medians.

// warmups are rounds whose samples are thrown away: caches fill, images are made.
const warmups = 2

// runLimit bounds one run: what hangs is a failure of the subject, not of the
// bench.
const runLimit = 30 * time.Second

// measure is what one run of a subject took. First is the time to the first
// byte of output, where there is one to wait for; Total to the end of it all.
type measure struct {
	First time.Duration
	Total time.Duration
}

// subject is one thing that is measured.
type subject struct {
	name string
	// how is what is run, for the reader of the table.
	how string
	run func(context.Context) (measure, error)
}

// rounds runs every subject warmups+n times in turn. A subject that fails is
// dropped from the following rounds, and drop is told.
func rounds(ctx context.Context, n int, subjects []subject, drop func(string, error)) ([]series, error) {
	all := make(map[string]*series, len(subjects))
	live := slices.Clone(subjects)
	for round := range warmups + n {
		var failed []string
		for i := range live {
			s := live[(i+round)%len(live)]
			m, err := s.limited(ctx)
			if ctx.Err() != nil {
				return nil, ctx.Err()
			}
			if err != nil {
				drop(s.name, fmt.Errorf("round %d: %w", round+1, err))
				delete(all, s.name)
				failed = append(failed, s.name)
				continue
			}
			if round < warmups {
				continue
			}
			if all[s.name] == nil {
				all[s.name] = &series{Subject: s.name, How: s.how}
			}
			all[s.name].add(m)
		}
		live = slices.DeleteFunc(live, func(s subject) bool { return slices.Contains(failed, s.name) })
		if len(live) == 0 {
			break
		}
	}
	var out []series
	for _, s := range subjects {
		if got := all[s.name]; got != nil {
			out = append(out, *got)
		}
	}
	return out, nil
}

// limited is run within runLimit.
func (s subject) limited(ctx context.Context) (measure, error) {
	ctx, cancel := context.WithTimeout(ctx, runLimit)
	defer cancel()
	m, err := s.run(ctx)
	if err != nil && ctx.Err() != nil {
		err = fmt.Errorf("it did not end within %v: %w", runLimit, err)
	}
	return m, err
}

// process runs argv once, as a subject: it must end with status 0 and write
// exactly want.
func process(ctx context.Context, want string, env []string, argv ...string) (measure, error) {
	var m measure
	cmd := command(ctx, argv...)
	cmd.Env = append(os.Environ(), env...)
	var said bytes.Buffer
	cmd.Stderr = &said
	r, w, err := os.Pipe()
	if err != nil {
		return m, err
	}
	defer r.Close()
	cmd.Stdout = w
	began := time.Now()
	err = cmd.Start()
	w.Close()
	if err != nil {
		return m, err
	}
	out, first, rerr := readFrom(r, began)
	m.First = first
	err = cmd.Wait()
	m.Total = time.Since(began)
	if err != nil {
		return m, fmt.Errorf("%s: %w: %s", filepath.Base(argv[0]), err, tail(said.String()))
	}
	if rerr != nil {
		return m, rerr
	}
	if string(out) != want {
		return m, fmt.Errorf("%s wrote %q, want %q", filepath.Base(argv[0]), tail(string(out)), want)
	}
	return m, nil
}

// readFrom reads all there is and says how long after began the first byte came.
func readFrom(r io.Reader, began time.Time) ([]byte, time.Duration, error) {
	buf := make([]byte, 4096)
	n, err := r.Read(buf)
	first := time.Since(began)
	if n == 0 {
		first = 0
		if errors.Is(err, io.EOF) {
			return nil, 0, nil
		}
	}
	if err != nil {
		return buf[:n], first, err
	}
	rest, err := io.ReadAll(io.LimitReader(r, 1<<20))
	return append(buf[:n], rest...), first, err
}

// command is a child that is asked to end, and killed if it does not.
func command(ctx context.Context, argv ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, argv[0], argv[1:]...)
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
	cmd.WaitDelay = 10 * time.Second
	return cmd
}

// output runs argv and returns what it wrote; its words are in the error.
func output(ctx context.Context, argv ...string) (string, error) {
	out, err := command(ctx, argv...).CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("%s: %w: %s", filepath.Base(argv[0]), err, tail(string(out)))
	}
	return string(out), nil
}

func tail(s string) string {
	s = strings.TrimSpace(s)
	return s[max(0, len(s)-600):]
}
