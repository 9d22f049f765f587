// Command mutate changes the product's code, one place at a time, and counts which
// changes the tests notice. A change that no test notices is a line that can be lost
// without a word.
//
// The sample is drawn by a seed, so that a run can be repeated: which changes are in it
// depends on them and the seed alone. Changes that mean nothing are listed in
// equivalent.txt, each with its reason; one in a sample is not tried and not replaced. The files of the tree
// stay as they are: the changed one is given to the go tool as an overlay.
package main

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"flag"
	"fmt"
	"io"
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
	{dir: "internal/policy/rules", tests: []string{"internal/policy/rules", "internal/policy"}},
	{dir: "internal/policy/egress", tests: []string{"internal/policy"}},
	{dir: "internal/egress"},
	{dir: "internal/egress/rule"},
	{dir: "internal/egress/inspect"},
	{dir: "internal/egress/intercept", tests: []string{"internal/egress/intercept", "internal/egress"}},
	{dir: "internal/endpoint"},
	{dir: "internal/endpoint/filter"},
	{dir: "internal/event"},
	{dir: "internal/agent/confine"},
	{dir: "internal/agent/guest/fsop", tests: []string{"internal/agent/guest/fsop", "internal/agent/guest"}},
	{dir: "internal/agent/guest/pathwalk", tests: []string{"internal/agent/guest/pathwalk", "internal/agent/guest"}},
	{dir: "internal/agent/guest/identity", tests: []string{"internal/agent/guest"}},
	{dir: "internal/agent/guest/launcher", tests: []string{"internal/agent/guest"}},
	{dir: "internal/agent/guest/process", tests: []string{"internal/agent/guest/process", "internal/agent/guest"}},
	{dir: "internal/sandbox", tests: []string{"internal/sandbox", "internal/core"}},
	{dir: "internal/sandbox/endpoints", tests: []string{"internal/sandbox/endpoints", "internal/sandbox"}},
	{dir: "internal/sandbox/files", tests: []string{"internal/sandbox/files", "internal/sandbox"}},
	{dir: "internal/sandbox/process", tests: []string{"internal/sandbox/process", "internal/sandbox", "internal/core"}},
	{dir: "internal/audit"},
	{dir: "internal/audit/chain", tests: []string{"internal/audit/chain", "internal/audit"}},
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
	again := flag.String("again", "", "a file with what an earlier run printed: what was noticed then is not tried again")
	list := flag.Bool("list", false, "print the sample, and try nothing")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	r := &runner{sample: *sample, seed: *seed, side: *side, limit: *limit, list: *list}
	if *again != "" {
		said, err := os.ReadFile(*again)
		if err != nil {
			fmt.Fprintln(os.Stderr, "mutate:", err)
			stop()
			os.Exit(1)
		}
		r.again = saidIn(string(said))
	}
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
	// again is what an earlier run said, by the keys of changes. What was noticed or did
	// not compile then counts as that; the rest of the sample is tried.
	again map[string]verdict
}

// Lines of a run about one change.
const (
	saidUnnoticed = "not noticed: "
	saidInvalid   = "not compiled: "
	saidNoticed   = "noticed: "
	saidLate      = "noticed by time: "
)

// saidIn reads what a run printed: what became of which change, by its key.
func saidIn(out string) map[string]verdict {
	keys := map[string]verdict{}
	for line := range strings.Lines(out) {
		for begin, v := range map[string]verdict{saidUnnoticed: unnoticed, saidInvalid: invalid, saidNoticed: noticed, saidLate: late} {
			if rest, ok := strings.CutPrefix(line, begin); ok {
				_, key, _ := strings.Cut(strings.TrimSpace(rest), ": ")
				keys[key] = v
			}
		}
	}
	return keys
}

// score is what became of a package's changes.
type score struct {
	dir string
	// places is how many changes the package has.
	places                      int
	tried, noticed, late, equal int
}

func (s score) String() string {
	return fmt.Sprintf("%s: %d of %d noticed, %d %%, %d by time, %d equivalent, of %d places", s.dir, s.noticed, s.tried, s.percent(), s.late, s.equal, s.places)
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
	var scores []score
	for _, t := range targets {
		if only != "" && !slices.Contains(strings.Split(only, ","), t.dir) {
			continue
		}
		s, err := r.try(ctx, w, t, known)
		if err != nil {
			return err
		}
		scores = append(scores, s)
		if !r.list {
			fmt.Fprintln(w, s)
		}
	}
	if r.list {
		return nil
	}
	return summarize(w, scores, r.sample, r.seed)
}

// summarize writes the scores as a table and judges them.
func summarize(w io.Writer, scores []score, sample int, seed uint64) error {
	all := score{dir: "overall"}
	var low []string
	fmt.Fprintf(w, "\nThe first %d changes of each package in the order of seed %d:\n\n", sample, seed)
	fmt.Fprintln(w, "| package | places | tried | noticed | by time | equivalent | score |\n|---|---|---|---|---|---|---|")
	row := func(s score) {
		fmt.Fprintf(w, "| %s | %d | %d | %d | %d | %d | %d %% |\n", s.dir, s.places, s.tried, s.noticed, s.late, s.equal, s.percent())
	}
	for _, s := range scores {
		row(s)
		all.places += s.places
		all.tried += s.tried
		all.noticed += s.noticed
		all.late += s.late
		all.equal += s.equal
		if s.percent() < goalPackage {
			low = append(low, s.dir)
		}
	}
	row(all)
	if all.tried == 0 {
		return errors.New("nothing was changed")
	}
	if all.percent() < goalOverall || len(low) > 0 {
		return fmt.Errorf("%d %% were noticed, the goal is %d; below %d %%: %s", all.percent(), goalOverall, goalPackage, strings.Join(low, " "))
	}
	return nil
}

// draw puts changes into the order of a seed. The place of a change depends only on
// the seed and the change, so that the same ones are drawn after a line elsewhere was fixed.
func draw(changes []change, seed uint64) {
	at := func(c change) [sha256.Size]byte { return sha256.Sum256(fmt.Appendf(nil, "%d %s", seed, c.key())) }
	slices.SortFunc(changes, func(a, b change) int {
		x, y := at(a), at(b)
		return bytes.Compare(x[:], y[:])
	})
}

// try changes one package. Changes that do not compile are not counted, and others take
// their place; nothing takes the place of one that is equivalent.
func (r *runner) try(ctx context.Context, w io.Writer, t target, known equivalents) (score, error) {
	changes, err := changesOf(t.dir)
	if err != nil {
		return score{}, err
	}
	if gone := known.stale(t.dir, changes); len(gone) > 0 {
		return score{}, fmt.Errorf("equivalent.txt has what is no change of %s: %s", t.dir, strings.Join(gone, "; "))
	}
	s := score{dir: t.dir, places: len(changes)}
	draw(changes, r.seed)
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
				if next == len(changes) || s.tried+s.equal >= r.sample {
					mu.Unlock()
					return
				}
				c := changes[next]
				next++
				if known.has(c) {
					s.equal++
					mu.Unlock()
					continue
				}
				s.tried++ // given back where it does not compile
				mu.Unlock()
				var err error
				v := r.again[c.key()]
				if v == unnoticed {
					v, err = r.judge(ctx, t, c)
				}
				mu.Lock()
				switch {
				case err != nil:
					fmt.Fprintf(w, "%s: %v\n", c, err)
					s.tried--
				case v == invalid:
					s.tried--
					fmt.Fprintf(w, "%s%s\n", saidInvalid, c)
				case v == late:
					s.noticed++
					s.late++
					fmt.Fprintf(w, "%s%s\n", saidLate, c)
				case v == noticed:
					s.noticed++
					fmt.Fprintf(w, "%s%s\n", saidNoticed, c)
				default:
					fmt.Fprintf(w, "%s%s\n", saidUnnoticed, c)
				}
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	return s, context.Cause(ctx)
}
