//go:build linux

package main

import (
	"bytes"
	"cmp"
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

// The method: all subjects of a group run in every round, once or as often in a
// row as they say, and each round begins with the next of them, so whatever else
// the machine does hits all alike. Each subject proves that its work was done. A ratio is one of medians.

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
	// Also is another time of the same run, where the subject has one.
	Also time.Duration
}

// subject is one thing that is measured.
type subject struct {
	name string
	// how is what is run, for the reader of the table.
	how string
	run func(context.Context) (measure, error)
	// row is how often it runs in each round without a pause; 0 is once.
	row int
	// limit is what bounds one run; 0 is runLimit.
	limit time.Duration
	// also names a second series, of what run returns as Also, and alsoHow says what that
	// is; empty means no second series.
	also, alsoHow string
	// most is how many samples it has at most: what takes long does not need one of every
	// round, and warms up once. 0 is one of each.
	most int
}

// idle says whether the subject leaves a round out.
func (s subject) idle(round int) bool {
	return s.most > 0 && (round < warmups-1 || round >= warmups+s.most)
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
			if s.idle(round) {
				continue
			}
			got, err := s.turn(ctx)
			if ctx.Err() != nil {
				return nil, ctx.Err()
			}
			if err != nil {
				drop(s.name, fmt.Errorf("round %d: %w", round+1, err))
				delete(all, s.name)
				delete(all, s.also)
				failed = append(failed, s.name)
				continue
			}
			if round < warmups {
				continue
			}
			if all[s.name] == nil {
				all[s.name] = &series{Subject: s.name, How: s.how}
			}
			if s.also != "" && all[s.also] == nil {
				all[s.also] = &series{Subject: s.also, How: s.alsoHow}
			}
			for _, m := range got {
				all[s.name].add(m)
				if s.also != "" {
					all[s.also].add(measure{Total: m.Also})
				}
			}
		}
		live = slices.DeleteFunc(live, func(s subject) bool { return slices.Contains(failed, s.name) })
		if len(live) == 0 {
			break
		}
	}
	var out []series
	for _, s := range subjects {
		for _, name := range []string{s.name, s.also} {
			if got := all[name]; got != nil {
				out = append(out, *got)
			}
		}
	}
	return out, nil
}

// turn is what a subject does in one round.
func (s subject) turn(ctx context.Context) ([]measure, error) {
	var got []measure
	for range max(s.row, 1) {
		m, err := s.limited(ctx)
		if err != nil {
			return nil, err
		}
		got = append(got, m)
	}
	return got, nil
}

// limited is run within its limit.
func (s subject) limited(ctx context.Context) (measure, error) {
	limit := cmp.Or(s.limit, runLimit)
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	m, err := s.run(ctx)
	if err != nil && ctx.Err() != nil {
		err = fmt.Errorf("it did not end within %v: %w", limit, err)
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
