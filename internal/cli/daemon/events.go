package daemon

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/cli/command"
	"github.com/cloche-dev/cloche/internal/terminal"
)

// eventKinds are the kinds that can be asked for.
func eventKinds() []string {
	kinds := api.EventKinds()
	names := make([]string, len(kinds))
	for i, k := range kinds {
		names[i] = string(k)
	}
	return names
}

// EventsCommand is "cloche events".
func EventsCommand(a *command.CLI) *cobra.Command {
	var kinds []string
	var from, endpoint string
	var follow bool
	c := &cobra.Command{
		Use:   "events [flags] [SANDBOX]",
		Short: "Show events of sandboxes and their processes",
		Long: `Show the events that are kept, of one sandbox or of all, oldest first: one line
each with time, kind, sandbox, and details. --follow continues with new events;
a broken connection is reconnected, with no event lost or repeated.

--since takes the cursor of the last known event (a field of --json), a time, a
duration before now, or "now" for new events only.

Kinds are sandbox.created, expiring, started, paused, suspended, resumed,
stopping, stopped, lost, removed, oom, adopted and degraded; process.started,
ready, not_ready, restarted, exited and failed; endpoint., image., egress.,
approval., policy. and audit. kinds; and refused. "--kind process" selects all
kinds that start with it.`,
		Example: `  cloche events
  cloche events -f --since now --kind process build
  cloche events --since 1h --kind refused --json`,
		GroupID:           command.GroupLook,
		Args:              command.AtMostOne,
		ValidArgsFunction: a.CompleteSandboxes,
		RunE: func(c *cobra.Command, args []string) error {
			o := api.EventOptions{Follow: follow}
			if len(args) == 1 {
				o.Sandbox = args[0]
			}
			if endpoint != "" && (o.Sandbox == "" || !api.ValidEndpointName(endpoint)) {
				return api.Invalid("endpoint", "--endpoint %q is not the name of an endpoint of a sandbox that is named", terminal.Clip(endpoint)).WithHint("cloche events --endpoint NAME SANDBOX")
			}
			o.Endpoint = endpoint
			var err error
			if o.Kinds, err = parseKinds(kinds); err != nil {
				return err
			}
			var after time.Time
			if o.After, after, err = parseAfter(from, time.Now()); err != nil {
				return err
			}
			return a.WithDaemon(c, func(ctx context.Context, conn *command.Connection) error {
				return command.UntilInterrupted(ctx, follow, conn.Events(ctx, o, func(e api.Event) error { return event(a, e, after) }))
			})
		},
	}
	c.Flags().StringVar(&endpoint, "endpoint", "", "only events of the sandbox's endpoint of this `NAME`")
	c.Flags().BoolVarP(&follow, "follow", "f", false, "continue with new events")
	c.Flags().StringVar(&from, "since", "", "only events after this `CURSOR|TIME|DURATION|now` (default all that are kept)")
	c.Flags().StringArrayVar(&kinds, "kind", nil, "only this `KIND` (repeatable: any may match)")
	return c
}

// parseKinds reads kinds, and the beginnings of kinds before their dot.
func parseKinds(names []string) ([]api.EventKind, error) {
	known := eventKinds()
	var kinds []api.EventKind
	for _, n := range names {
		found := false
		for _, k := range known {
			if k == n || strings.HasPrefix(k, n+".") {
				found = true
				if !slices.Contains(kinds, api.EventKind(k)) {
					kinds = append(kinds, api.EventKind(k))
				}
			}
		}
		if !found {
			return nil, api.Invalid("kind", "--kind %q is not a kind of event", terminal.Clip(n)).
				WithHint("the kinds are sandbox, process, image, %s", strings.Join(known, ", "))
		}
	}
	return kinds, nil
}

// parseAfter is the cursor to ask for, and the time before which events are left
// out.
func parseAfter(s string, now time.Time) (cursor int64, after time.Time, err error) {
	switch s {
	case "":
		return 0, after, nil
	case "now":
		return -1, after, nil
	}
	at, err := command.ParseSince(s, now)
	if err != nil {
		return 0, after, err
	}
	if at.Number == nil {
		return 0, at.Time, nil
	}
	if *at.Number < 0 {
		return 0, after, api.Invalid("since", "--since %s is a negative cursor", terminal.Clip(s)).WithHint(`give the cursor of an event, or "now"`)
	}
	return *at.Number, after, nil
}

func event(a *command.CLI, e api.Event, after time.Time) error {
	if e.Time.Before(after) {
		return nil
	}
	if a.JSON {
		return a.PrintJSON(e)
	}
	if e.Missed > 0 {
		a.Note("%d events before this one are no longer kept", e.Missed)
	}
	name := e.Name
	if name == "" {
		name = e.Sandbox
	}
	if name == "" {
		name = cmp.Or(e.Image, "-")
	}
	line := fmt.Sprintf("%s %s %s %s", e.Time.Local().Format("2006-01-02T15:04:05.000Z07:00"), e.Kind, name, eventDetail(e))
	if _, err := fmt.Fprintln(a.Stdio.Out, strings.TrimRight(terminal.Printable(line), " ")); err != nil {
		return command.OutputError(err)
	}
	return nil
}

// eventDetail is what there is to say of an event beyond its kind.
func eventDetail(e api.Event) string {
	var parts []string
	if p := e.Process; p != nil {
		parts = append(parts, p.ExecID)
		if p.Name != "" {
			parts = append(parts, "("+p.Name+")")
		}
		if exit := command.ExitColumn(*p); exit != "-" {
			parts = append(parts, "exit="+exit)
		}
		if p.Restarts > 0 {
			parts = append(parts, "restarts="+strconv.Itoa(p.Restarts))
		}
		if e.Kind == api.EventProcessStarted {
			parts = append(parts, terminal.Clip(strings.Join(p.Argv, " ")))
		}
		if e.Reason == "" && p.Reason != "" {
			parts = append(parts, p.Reason)
		}
	}
	if p := e.Pull; p != nil {
		parts = append(parts, string(p.Phase))
		if p.TotalBytes > 0 {
			parts = append(parts, command.FormatSize(p.Bytes)+" of "+command.FormatSize(p.TotalBytes))
		}
	}
	if e.Verb != "" {
		parts = append(parts, e.Verb)
	}
	if e.Rule != "" {
		parts = append(parts, "rule="+e.Rule)
	}
	if r := e.Egress; r != nil {
		parts = append(parts, command.HostPort(r.Name, r.Port))
	}
	if p := e.Approval; p != nil {
		parts = append(parts, p.ID, string(p.State), command.HostPort(p.Name, p.Port))
	}
	if e.ExpiresAt != nil {
		parts = append(parts, "at "+e.ExpiresAt.Local().Format(time.TimeOnly))
	}
	if e.Endpoint != "" {
		parts = append(parts, "endpoint "+e.Endpoint)
	}
	if e.Reason != "" {
		parts = append(parts, e.Reason)
	}
	return strings.Join(parts, " ")
}
