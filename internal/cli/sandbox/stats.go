package sandbox

import (
	"context"
	"fmt"
	"strconv"
	"sync"
	"time"

	"github.com/spf13/cobra"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/cli/command"
)

const (
	// statsEvery is the time between two measurements.
	statsEvery = time.Second
	// maxStats is how many sandboxes are asked at once.
	maxStats = 8
)

// statsRow is one line of stats: two measurements give the share of the processor.
type statsRow struct {
	api.SandboxStats
	// CPUPercent is of one core, between two measurements; nil is not measured.
	CPUPercent *float64 `json:"cpu_percent,omitempty"`
}

// statsList is the JSON result of stats.
type statsList struct {
	Stats []statsRow `json:"stats"`
}

// StatsCommand is "cloche stats".
func StatsCommand(a *command.CLI) *cobra.Command {
	var once, all bool
	c := &cobra.Command{
		Use:   "stats [flags] [SANDBOX...]",
		Short: "Show the resource use of sandboxes",
		Long: `Show the CPU, memory, processes, workspace and network use of all running
sandboxes or of the named ones, every second until it is interrupted. With
--no-stream, and if the output isn't a terminal, it is shown once.

CPU is the share of one core since the previous measurement, a second earlier.
WORKSPACE is the disk use of a private or named workspace. NET is the traffic in
and out over the network link. "-" means that the engine or this machine can't
measure it. With --json each measurement is one document, with the time at which
each sandbox was observed.`,
		Example:           "  cloche stats\n  cloche stats --no-stream build\n  cloche stats --no-stream --json",
		GroupID:           command.GroupLook,
		Args:              cobra.ArbitraryArgs,
		ValidArgsFunction: a.CompleteSandboxes,
		RunE: func(c *cobra.Command, args []string) error {
			f, tty := command.TerminalOf(a.Stdio.Out)
			return a.WithDaemon(c, func(ctx context.Context, conn *command.Connection) error {
				s := statsView{app: a, conn: conn, refs: args, all: all}
				if _, err := s.measure(ctx); err != nil {
					return err
				}
				for {
					select {
					case <-ctx.Done():
						return command.UntilInterrupted(ctx, true, ctx.Err())
					case <-time.After(statsEvery):
					}
					rows, err := s.measure(ctx)
					if err != nil {
						return command.UntilInterrupted(ctx, !once, err)
					}
					stream := !once && (tty || a.JSON && a.View == nil)
					if stream && !a.JSON {
						fmt.Fprint(f, "\x1b[H\x1b[2J") // the table takes the place of the last one
					}
					if err := showStats(a, rows); err != nil || !stream {
						return err
					}
				}
			})
		},
	}
	c.Flags().BoolVar(&once, "no-stream", false, "show it once")
	c.Flags().BoolVarP(&all, "all", "a", false, "also those that aren't running")
	return c
}

// statsView measures again and again.
type statsView struct {
	app  *command.CLI
	conn *command.Connection
	refs []string
	all  bool
	last map[string]api.SandboxStats
}

// measure asks for all at once. One that was not named and is gone is left out.
func (s *statsView) measure(ctx context.Context) ([]statsRow, error) {
	refs := s.refs
	if len(refs) == 0 {
		o := api.ListOptions{Limit: command.MaxListPage}
		if !s.all {
			o.States = []api.State{api.StateRunning, api.StatePaused}
		}
		for sb, err := range s.conn.ListAll(ctx, o) {
			if err != nil {
				return nil, err
			}
			refs = append(refs, sb.ID)
		}
	}
	got, errs := make([]api.SandboxStats, len(refs)), make([]error, len(refs))
	var wg sync.WaitGroup
	slots := make(chan struct{}, maxStats)
	for i, ref := range refs {
		wg.Go(func() {
			slots <- struct{}{}
			defer func() { <-slots }()
			got[i], errs[i] = s.conn.Stats(ctx, ref)
		})
	}
	wg.Wait()
	rows, seen := []statsRow{}, map[string]api.SandboxStats{}
	for i, st := range got {
		if errs[i] != nil {
			if len(s.refs) == 0 && api.CodeOf(errs[i]) == api.CodeNotFound {
				continue
			}
			return nil, errs[i]
		}
		seen[st.Sandbox] = st
		rows = append(rows, statsRow{st, cpuPercent(s.last[st.Sandbox], st)})
	}
	s.last = seen
	return rows, nil
}

// cpuPercent is the share of one core between two measurements; nil is not known.
func cpuPercent(before, after api.SandboxStats) *float64 {
	past := after.ObservedAt.Sub(before.ObservedAt)
	if before.CPUMS == nil || after.CPUMS == nil || past <= 0 || *after.CPUMS < *before.CPUMS {
		return nil
	}
	share := float64(*after.CPUMS-*before.CPUMS) / float64(past.Milliseconds()+1) * 100
	return &share
}

func showStats(a *command.CLI, rows []statsRow) error {
	if a.JSON {
		return a.PrintJSON(statsList{rows})
	}
	var table [][]string
	for _, r := range rows {
		cpu := "-"
		if r.CPUPercent != nil {
			cpu = strconv.FormatFloat(*r.CPUPercent, 'f', 1, 64) + "%"
		}
		table = append(table, []string{
			r.Name, string(r.State), cpu, sizeOf(r.MemoryBytes, r.Limits.MemoryBytes), countOf(r.Processes, r.Limits.Pids),
			sizeOf(r.WorkspaceBytes, 0), sizeOf(r.NetworkInBytes, 0) + " / " + sizeOf(r.NetworkOutBytes, 0),
		})
	}
	return command.WriteTable(a.Stdio.Out, []string{"NAME", "STATE", "CPU", "MEMORY", "PROCESSES", "WORKSPACE", "NET IN / OUT"}, table)
}

// sizeOf is a measured size with its limit, 0 for none.
func sizeOf(n *int64, limit int64) string {
	switch {
	case n == nil:
		return "-"
	case limit > 0:
		return command.FormatSize(*n) + " / " + command.FormatSize(limit)
	}
	return command.FormatSize(*n)
}

// countOf is a measured number with its limit, 0 for none.
func countOf(n *int64, limit int64) string {
	switch {
	case n == nil:
		return "-"
	case limit > 0:
		return fmt.Sprintf("%d / %d", *n, limit)
	}
	return strconv.FormatInt(*n, 10)
}
