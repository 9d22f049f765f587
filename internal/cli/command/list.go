package command

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/terminal"
)

// Removed is the JSON result of rm.
type Removed struct {
	Removed string `json:"removed"`
}

// ParseStates is the filter: what was named, or what lives, or all.
func ParseStates(names []string, all bool) ([]api.State, error) {
	known := api.States()
	var states []api.State
	for _, n := range names {
		if !slices.Contains(known, api.State(n)) {
			return nil, api.Invalid("state", "--state %q is not a state", terminal.Clip(n)).WithHint("the states are %v", known)
		}
		states = append(states, api.State(n))
	}
	if len(states) == 0 && !all {
		states = slices.DeleteFunc(known, func(s api.State) bool { return !Live(s) })
	}
	return states, nil
}

// List prints sandboxes.
func List(ctx context.Context, a *CLI, conn *Connection, o api.ListOptions, quiet bool) error {
	list := api.SandboxList{Sandboxes: []api.Sandbox{}}
	for sb, err := range conn.ListAll(ctx, o) {
		if err != nil {
			return err
		}
		list.Sandboxes = append(list.Sandboxes, sb)
	}
	switch {
	case a.JSON:
		return a.PrintJSON(list)
	case quiet:
		for _, sb := range list.Sandboxes {
			fmt.Fprintln(a.Stdio.Out, terminal.Printable(sb.ID))
		}
		return nil
	}
	var rows [][]string
	for _, sb := range list.Sandboxes {
		rows = append(rows, []string{sb.ID, sb.Name, string(sb.State), sb.Image, sb.Engine, FormatAge(time.Since(sb.CreatedAt)), expires(sb, time.Now())})
	}
	return WriteTable(a.Stdio.Out, []string{"ID", "NAME", "STATE", "IMAGE", "ENGINE", "AGE", "EXPIRES"}, rows)
}

// MaxListPage is the largest page of a list.
const MaxListPage = 1000

// expires returns how long the lease of a sandbox lasts from now, if it is not used.
func expires(sb api.Sandbox, now time.Time) string {
	if sb.ExpiresAt == nil || !Live(sb.State) {
		return "-"
	}
	return "in " + FormatAge(sb.ExpiresAt.Sub(now))
}
