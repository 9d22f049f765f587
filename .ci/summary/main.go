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
}

type key struct{ pkg, test string }

type tally struct {
	passed, failed, skipped int
	output                  map[key][]string
	failures                []key
	reasons                 map[string][]string
}

func main() {
	brief := flag.Bool("brief", false, "print the counts alone")
	failures := flag.Bool("failures", false, "print the output of what failed")
	flag.Parse()
	t := &tally{output: map[key][]string{}, reasons: map[string][]string{}}
	for _, path := range flag.Args() {
		if err := t.read(path); err != nil {
			fmt.Fprintln(os.Stderr, "summary:", err)
			os.Exit(1)
		}
	}
	if *failures {
		for _, k := range t.failures {
			fmt.Printf("--- FAIL %s %s\n%s", k.pkg, k.test, strings.Join(t.output[k], ""))
		}
	}
	if !*brief {
		reasons := make([]string, 0, len(t.reasons))
		for r := range t.reasons {
			reasons = append(reasons, r)
		}
		sort.Strings(reasons)
		for _, r := range reasons {
			fmt.Printf("skipped %d: %s\n    %s\n", len(t.reasons[r]), r, strings.Join(t.reasons[r], "\n    "))
		}
	}
	fmt.Printf("%d passed, %d failed, %d skipped\n", t.passed, t.failed, t.skipped)
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
	case "pass":
		if e.Test != "" {
			t.passed++
			delete(t.output, k)
		}
	case "fail", "build-fail":
		t.failures = append(t.failures, k)
		if e.Test != "" || len(t.output[k]) > 0 {
			t.failed++
		}
	case "skip":
		if e.Test != "" {
			t.skipped++
			r := reason(t.output[k])
			t.reasons[r] = append(t.reasons[r], e.Package+" "+e.Test)
		}
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
