package cli

import (
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"

	"golang.org/x/term"

	"github.com/cloche-dev/cloche"
)

// printJSON writes one document on one line: several form JSON lines.
func (a *app) printJSON(v any) error {
	enc := json.NewEncoder(a.stdio.Out)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(v); err != nil {
		return outputError(err)
	}
	return nil
}

// warn writes one line for a person.
func (a *app) warn(format string, args ...any) {
	fmt.Fprintf(a.stdio.Err, "cloche: %s\n", printable(fmt.Sprintf(format, args...)))
}

// warnGranted says where the sandbox differs from what was asked for.
func (a *app) warnGranted(adjusted []cloche.Adjustment, unenforced []cloche.Unenforced) {
	for _, d := range adjusted {
		a.warn("%s: asked for %s, using %s (%s)", d.Field, d.Asked, d.Used, d.Rule)
	}
	// Limits fail together for one reason mostly: it is said once.
	byReason := map[string][]string{}
	for _, u := range unenforced {
		byReason[u.Reason] = append(byReason[u.Reason], u.Field)
	}
	for _, reason := range slices.Sorted(maps.Keys(byReason)) {
		a.warn("not enforced: %s: %s", strings.Join(byReason[reason], ", "), reason)
	}
}

// warnSkipped says what a copy left out, the first few by name.
func (a *app) warnSkipped(skipped []cloche.TarSkip) {
	const named = 10
	for i, s := range skipped {
		if i == named {
			a.warn("%d more were left out", len(skipped)-named)
			return
		}
		a.warn("left out %s: %s", s.Path, s.Reason)
	}
}

// terminal returns the file behind a stream when it is a terminal.
func terminal(stream any) (*os.File, bool) {
	f, ok := stream.(*os.File)
	return f, ok && f != nil && term.IsTerminal(int(f.Fd()))
}

// showProgress is whether a person looks at standard error.
func (a *app) showProgress() bool {
	_, tty := terminal(a.stdio.Err)
	return tty && !a.json
}
