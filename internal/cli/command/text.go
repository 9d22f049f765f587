package command

import (
	"fmt"
	"net"
	"strconv"
	"strings"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/terminal"
)

// ShellWord is a word as it can be pasted into a shell.
func ShellWord(s string) string {
	if s != "" && strings.Trim(s, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789@._:/-") == "" {
		return s
	}
	return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'"
}

// ShellWords are words as they are typed, one after the other.
func ShellWords(words []string) string {
	out := make([]string, len(words))
	for i, w := range words {
		out[i] = ShellWord(w)
	}
	return strings.Join(out, " ")
}

// HostPort is where something goes; port 0 is not known.
func HostPort(name string, port int) string {
	if port == 0 {
		return name
	}
	return net.JoinHostPort(name, strconv.Itoa(port))
}

// OrDash is s, or "-" if it is empty.
func OrDash(s string) string {
	if strings.TrimSpace(s) == "" {
		return "-"
	}
	return s
}

// ExitColumn is how a process ended, in a word.
func ExitColumn(p api.Process) string {
	switch {
	case p.OOM:
		return "oom"
	case p.TimedOut:
		return "timeout"
	case p.ExitCode != nil:
		return strconv.Itoa(*p.ExitCode)
	case p.Signal != "":
		return p.Signal
	case p.State.Ended():
		return "unknown"
	}
	return "-"
}

// PrintLines writes text of a daemon's with its line breaks.
func PrintLines(a *CLI, text string) error {
	for line := range strings.Lines(text) {
		if _, err := fmt.Fprintln(a.Stdio.Out, terminal.Printable(strings.TrimSuffix(line, "\n"))); err != nil {
			return OutputError(err)
		}
	}
	return nil
}
