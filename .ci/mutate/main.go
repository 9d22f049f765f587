// Command mutate changes the product's code, one place at a time, and counts which
// changes the tests notice. A change that no test notices is a line that can be lost
// without a word.
//
// The sample is drawn by a seed, so that a run can be repeated. Changes that mean
// nothing are listed in equivalent.txt, each with its reason. The files of the tree
// stay as they are: the changed one is given to the go tool as an overlay.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/signal"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"
)

// target is a package whose code is changed, and the packages whose tests should notice.
type target struct {
	dir   string
	tests []string
}

// targets are the packages on whose checks the promises of SECURITY.md rest.
var targets = []target{
	{dir: "internal/policy"},
	{dir: "internal/egress"},
	{dir: "internal/egress/rule"},
	{dir: "internal/egress/inspect"},
	{dir: "internal/egress/intercept", tests: []string{"internal/egress/intercept", "internal/egress"}},
	{dir: "internal/bridge"},
	{dir: "internal/bridge/filter"},
	{dir: "internal/agent/confine"},
	{dir: "internal/agent/guest"},
	{dir: "internal/sandbox", tests: []string{"internal/sandbox", "internal/core"}},
	{dir: "internal/audit"},
	{dir: "internal/audit/chain", tests: []string{"internal/audit"}},
	{dir: "internal/spool"},
	{dir: "internal/workspace"},
	{dir: "internal/image"},
	{dir: "internal/key"},
}

// The score that is asked for, in hundredths.
const (
	goalOverall = 85
	goalPackage = 75
)

func main() {
	only := flag.String("only", "", "the packages to change, with commas between (default all)")
	sample := flag.Int("n", 20, "how many changes are tried in each package")
	seed := flag.Uint64("seed", 1, "draws the sample")
	side := flag.Int("j", 2, "how many are tried side by side")
	limit := flag.Duration("timeout", 3*time.Minute, "how long the tests of one change may take: what takes longer was noticed")
	list := flag.Bool("list", false, "print the sample, and try nothing")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	r := &runner{sample: *sample, seed: *seed, side: *side, limit: *limit, list: *list}
	if err := r.run(ctx, os.Stdout, *only); err != nil {
		fmt.Fprintln(os.Stderr, "mutate:", err)
		stop()
		os.Exit(1)
	}
}

type runner struct {
	sample, side int
	seed         uint64
	limit        time.Duration
	list         bool
}

// score is what became of a package's changes.
type score struct{ noticed, tried, equal int }

func (s score) String() string {
	return fmt.Sprintf("%d of %d noticed, %d %%, %d equivalent", s.noticed, s.tried, s.percent(), s.equal)
}

func (s score) percent() int {
	if s.tried == 0 {
		return 100
	}
	return s.noticed * 100 / s.tried
}

// run tries all packages and fails where a score is below its goal.
func (r *runner) run(ctx context.Context, w io.Writer, only string) error {
	known, err := readEquivalent(".ci/mutate/equivalent.txt")
	if err != nil {
		return err
	}
	var all score
	var low []string
	for _, t := range targets {
		if only != "" && !slices.Contains(strings.Split(only, ","), t.dir) {
			continue
		}
		s, err := r.try(ctx, w, t, known)
		if err != nil {
			return err
		}
		fmt.Fprintf(w, "%s: %s\n", t.dir, s)
		if all = (score{all.noticed + s.noticed, all.tried + s.tried, all.equal + s.equal}); s.percent() < goalPackage {
			low = append(low, t.dir)
		}
	}
	if r.list {
		return nil
	}
	fmt.Fprintf(w, "overall: %s\n", all)
	if all.tried == 0 {
		return errors.New("nothing was changed")
	}
	if all.percent() < goalOverall || len(low) > 0 {
		return fmt.Errorf("%d %% were noticed, the goal is %d; below %d %%: %s", all.percent(), goalOverall, goalPackage, strings.Join(low, " "))
	}
	return nil
}

// try changes one package. Changes that do not compile are not counted; others take
// their place.
func (r *runner) try(ctx context.Context, w io.Writer, t target, known equivalents) (score, error) {
	changes, err := changesOf(t.dir)
	if err != nil {
		return score{}, err
	}
	var s score
	changes = slices.DeleteFunc(changes, func(c change) bool {
		equal := known.has(c)
		if equal {
			s.equal++
		}
		return equal
	})
	rng := rand.New(rand.NewPCG(r.seed, uint64(len(changes))))
	rng.Shuffle(len(changes), func(i, j int) { changes[i], changes[j] = changes[j], changes[i] })
	if r.list {
		for _, c := range changes[:min(r.sample, len(changes))] {
			fmt.Fprintln(w, c)
		}
		return s, nil
	}
	if err := r.clean(ctx, t); err != nil {
		return score{}, fmt.Errorf("%s fails before anything is changed: %w", t.dir, err)
	}
	var mu sync.Mutex
	var wg sync.WaitGroup
	next := 0
	for range r.side {
		wg.Go(func() {
			for ctx.Err() == nil {
				mu.Lock()
				if next == len(changes) || s.tried >= r.sample {
					mu.Unlock()
					return
				}
				c := changes[next]
				next++
				s.tried++ // given back where it does not compile
				mu.Unlock()
				v, err := r.judge(ctx, t, c)
				mu.Lock()
				switch {
				case err != nil:
					fmt.Fprintf(w, "%s: %v\n", c, err)
					s.tried--
				case v == invalid:
					s.tried--
				case v == noticed:
					s.noticed++
				default:
					fmt.Fprintf(w, "not noticed: %s\n", c)
				}
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	return s, context.Cause(ctx)
}
