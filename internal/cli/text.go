package cli

import (
	"fmt"
	"net"
	"strconv"
	"strings"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/cli/command"
	"github.com/cloche-dev/cloche/internal/terminal"
)

// shellWord is a word as it can be pasted into a shell.
func shellWord(s string) string {
	if s != "" && strings.Trim(s, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789@._:/-") == "" {
		return s
	}
	return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'"
}

// shellWords are words as they are typed, one after the other.
func shellWords(words []string) string {
	out := make([]string, len(words))
	for i, w := range words {
		out[i] = shellWord(w)
	}
	return strings.Join(out, " ")
}

// hostPort is where something goes; port 0 is not known.
func hostPort(name string, port int) string {
	if port == 0 {
		return name
	}
	return net.JoinHostPort(name, strconv.Itoa(port))
}

func orDash(s string) string {
	if strings.TrimSpace(s) == "" {
		return "-"
	}
	return s
}

// exitColumn is how a process ended, in a word.
func exitColumn(p api.Process) string {
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

// printLines writes text of a daemon's with its line breaks.
func printLines(a *command.CLI, text string) error {
	for line := range strings.Lines(text) {
		if _, err := fmt.Fprintln(a.Stdio.Out, terminal.Printable(strings.TrimSuffix(line, "\n"))); err != nil {
			return command.OutputError(err)
		}
	}
	return nil
}
