package main

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
)

// maxAgain is how many failures may be the machine's fault. More are not run again.
const maxAgain = 5

// leaves are the failures that no other failure explains: neither the test around a
// subtest nor the package around a test.
func (t *tally) leaves() []key {
	var out []key
	for _, k := range t.failures {
		inner := func(o key) bool {
			return o.pkg == k.pkg && o != k && (k.test == "" || strings.HasPrefix(o.test, k.test+"/"))
		}
		if !slices.ContainsFunc(t.failures, inner) && !slices.Contains(out, k) {
			out = append(out, k)
		}
	}
	return out
}

// again prints what to run again, and is the status to exit with: 1 where that
// would prove nothing.
func (t *tally) again() int {
	leaves := t.leaves()
	if len(leaves) == 0 || len(leaves) > maxAgain || t.abandoned {
		return 1
	}
	for _, k := range leaves {
		// A package that does not build or ends by itself, with tests that never began;
		// and a race, which is one however seldom it is seen.
		if k.test == "" || slices.ContainsFunc(t.output[k], final) {
			return 1
		}
	}
	for _, k := range leaves {
		parts := strings.Split(k.test, "/")
		for i, p := range parts {
			parts[i] = "^" + regexp.QuoteMeta(p) + "$"
		}
		fmt.Println(k.pkg, strings.Join(parts, "/"))
	}
	return 0
}

// final says whether a line is of a failure that another run cannot fix.
func final(line string) bool {
	return strings.HasPrefix(line, "panic: ") || strings.HasPrefix(line, "fatal error: ") || strings.Contains(line, "DATA RACE")
}

// recovered takes a test that passed off the failures, with what failed for it alone.
func (t *tally) recovered(k key) {
	if !slices.Contains(t.failures, k) {
		return
	}
	t.second = append(t.second, k)
	t.failures = slices.DeleteFunc(t.failures, func(o key) bool { return o == k })
	for around := k.test; ; {
		i := strings.LastIndexByte(around, '/')
		around = around[:max(i, 0)]
		outer := key{k.pkg, around}
		if slices.ContainsFunc(t.failures, func(o key) bool {
			return o.pkg == k.pkg && o != outer && (around == "" || strings.HasPrefix(o.test, around+"/"))
		}) {
			return // it failed for another one too
		}
		t.failures = slices.DeleteFunc(t.failures, func(o key) bool { return o == outer })
		if around == "" {
			return
		}
	}
}
