// Command summary reads the events of go test -json and says what ran, what
// failed, and what was skipped with the reason that the test gave.
package main

import (
	"bufio"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"sort"
	"strings"
)

type event struct {
	Action, Package, Test, Output string
	Elapsed                       float64 // seconds
}

type key struct{ pkg, test string }

type tally struct {
	passed, skipped int
	output          map[key][]string
	failures        []key
	second          []key // passed only when it was run again
	abandoned       bool  // a package ended with tests that were running
	reasons         map[string][]string
	running         map[key]bool // begun, and no end is known
	took            []took
}

type took struct {
	key
	seconds float64
}

func main() {
	brief := flag.Bool("brief", false, "print the counts alone")
	failures := flag.Bool("failures", false, "print the output of what failed")
	again := flag.Bool("again", false, "print the package and the pattern of each test that failed, for another run of it")
	flag.Parse()
	t := &tally{output: map[key][]string{}, reasons: map[string][]string{}, running: map[key]bool{}}
	for _, path := range flag.Args() {
		if err := t.read(path); err != nil {
			fmt.Fprintln(os.Stderr, "summary:", err)
			os.Exit(1)
		}
	}
	if *again {
		os.Exit(t.again())
	}
	if *failures {
		for _, k := range t.failures {
			fmt.Printf("--- FAIL %s %s\n%s", k.pkg, k.test, strings.Join(t.output[k], ""))
		}
	}
	if !*brief {
		t.slowest()
		reasons := make([]string, 0, len(t.reasons))
		for r := range t.reasons {
			reasons = append(reasons, r)
		}
		sort.Strings(reasons)
		for _, r := range reasons {
			fmt.Printf("skipped %d: %s\n    %s\n", len(t.reasons[r]), r, strings.Join(t.reasons[r], "\n    "))
		}
	}
	for _, k := range t.second {
		fmt.Printf("passed only when it was run again: %s %s\n", k.pkg, k.test)
	}
	fmt.Printf("%d passed, %d failed, %d skipped, %d of the passed ones in a second run\n",
		t.passed, len(t.leaves()), t.skipped, len(t.second))
	if len(t.failures) > 0 {
		os.Exit(1)
	}
}

func (t *tally) read(path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	lines := bufio.NewScanner(f)
	lines.Buffer(nil, 16<<20)
	for lines.Scan() {
		var e event
		if json.Unmarshal(lines.Bytes(), &e) != nil {
			continue // a build's own words
		}
		t.add(e)
	}
	return lines.Err()
}

func (t *tally) add(e event) {
	k := key{e.Package, e.Test}
	switch e.Action {
	case "output", "build-output":
		t.output[k] = append(t.output[k], e.Output)
	case "run":
		t.running[k] = true
	case "pass":
		t.end(k, e.Elapsed)
		if e.Test != "" {
			t.passed++
			t.recovered(k)
			delete(t.output, k)
		}
	case "fail", "build-fail":
		t.end(k, e.Elapsed)
		if e.Test == "" {
			t.abandon(e.Package)
		}
		t.failures = append(t.failures, k)
	case "skip":
		t.end(k, e.Elapsed)
		if e.Test != "" {
			t.skipped++
			r := reason(t.output[k])
			t.reasons[r] = append(t.reasons[r], e.Package+" "+e.Test)
		}
	}
}

// end notes how long a whole test took.
func (t *tally) end(k key, seconds float64) {
	delete(t.running, k)
	if k.test != "" && !strings.Contains(k.test, "/") {
		t.took = append(t.took, took{k, seconds})
	}
}

// abandon fails the tests that a package's end found running: one that hangs, or
// that takes the whole program with it, is reported by nothing else.
func (t *tally) abandon(pkg string) {
	for k := range t.running {
		if k.pkg == pkg {
			delete(t.running, k)
			t.failures = append(t.failures, k)
			t.abandoned = true
			if out := t.output[k]; len(out) > abandonedLines {
				t.output[k] = append([]string{"…\n"}, out[len(out)-abandonedLines:]...)
			}
		}
	}
}

// abandonedLines is how much is shown of a test that did not end.
const abandonedLines = 400

// slowest names the tests that took longest.
func (t *tally) slowest() {
	sort.Slice(t.took, func(i, j int) bool { return t.took[i].seconds > t.took[j].seconds })
	for _, s := range t.took[:min(10, len(t.took))] {
		fmt.Printf("%6.0f s  %s %s\n", s.seconds, s.pkg, s.test)
	}
}

// reason is what the test said when it skipped: the line before "--- SKIP", as
// go test prints it, without the place.
func reason(output []string) string {
	for _, line := range output {
		line = strings.TrimSpace(line)
		if place, text, ok := strings.Cut(line, ": "); ok && strings.Contains(place, ".go:") {
			return text
		}
	}
	return "no reason given"
}
