package command

import (
	"bytes"
	"encoding/json"
	"fmt"
	"iter"
	"maps"
	"os"
	"slices"
	"strings"
	"unicode/utf8"

	"golang.org/x/term"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/terminal"
)

// PrintJSON writes one document on one line: several form JSON lines.
func (a *CLI) PrintJSON(v any) error {
	return a.EncodeJSON(v, "")
}

// EncodeJSON escapes every control character: JSON alone leaves DEL and the
// controls from U+0080 on, which a terminal would obey.
// Where the user chose another view, that is written.
func (a *CLI) EncodeJSON(v any, indent string) error {
	if a.View != nil {
		data, err := a.View(v)
		if err != nil {
			return err
		}
		if _, err := a.Stdio.Out.Write(data); err != nil {
			return OutputError(err)
		}
		return nil
	}
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	enc.SetIndent("", indent)
	if err := enc.Encode(v); err != nil {
		return fmt.Errorf("write output: %w", err)
	}
	if _, err := a.Stdio.Out.Write(escapeControls(b.Bytes())); err != nil {
		return OutputError(err)
	}
	return nil
}

// escapeControls escapes in JSON what JSON's own escapes leave.
func escapeControls(doc []byte) []byte {
	if !bytes.ContainsFunc(doc, isControl) {
		return doc
	}
	var out []byte
	for _, r := range string(doc) {
		if isControl(r) {
			out = fmt.Appendf(out, `\u%04x`, r)
		} else {
			out = utf8.AppendRune(out, r)
		}
	}
	return out
}

// isControl is true for what JSON's own escapes leave.
func isControl(r rune) bool { return r >= 0x7f && r < 0xa0 }

// Warn writes one line for a person.
func (a *CLI) Warn(format string, args ...any) {
	fmt.Fprintf(a.Stdio.Err, "cloche: %s\n", terminal.Printable(fmt.Sprintf(format, args...)))
}

// Note writes one line about what stands around it, where that is not Cloche's
// own text. On a raw terminal a line must go back to the margin by itself.
func (a *CLI) Note(format string, args ...any) {
	end := "\n"
	if a.raw.Load() {
		end = "\r\n"
	}
	fmt.Fprintf(a.Stdio.Err, "[cloche: %s]%s", terminal.Printable(fmt.Sprintf(format, args...)), end)
}

// newline ends the line that a program on the terminal may have left open.
func (a *CLI) newline() { fmt.Fprintln(a.Stdio.Out) }

// WarnGranted says where the sandbox differs from what was asked for.
func (a *CLI) WarnGranted(adjusted []api.Adjustment, unenforced []api.Unenforced) {
	for _, d := range adjusted {
		a.Warn("%s: asked for %s, using %s (%s)", d.Field, d.Asked, d.Used, d.Rule)
	}
	for fields, reason := range ByReason(unenforced) {
		a.Warn("not enforced: %s: %s", fields, reason)
	}
}

// ByReason yields the names of limits that fail together, and why: mostly it is one
// reason for all, which is said once.
func ByReason(unenforced []api.Unenforced) iter.Seq2[string, string] {
	fields := map[string][]string{}
	for _, u := range unenforced {
		fields[u.Reason] = append(fields[u.Reason], u.Field)
	}
	return func(yield func(string, string) bool) {
		for _, reason := range slices.Sorted(maps.Keys(fields)) {
			if !yield(strings.Join(fields[reason], ", "), reason) {
				return
			}
		}
	}
}

// WarnSkipped says what a copy left out, the first few by name.
func (a *CLI) WarnSkipped(skipped []api.TarSkip) {
	const named = 10
	for i, s := range skipped {
		if i == named {
			a.Warn("%d more were left out", len(skipped)-named)
			return
		}
		a.Warn("left out %s: %s", s.Path, s.Reason)
	}
}

// TerminalOf returns the file behind a stream when it is a terminal.
func TerminalOf(stream any) (*os.File, bool) {
	f, ok := stream.(*os.File)
	return f, ok && f != nil && term.IsTerminal(int(f.Fd()))
}

// ShowProgress is whether a person looks at standard error.
func (a *CLI) ShowProgress() bool {
	_, tty := TerminalOf(a.Stdio.Err)
	return tty && !a.JSON
}
