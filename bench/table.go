//go:build linux

package main

import (
	"fmt"
	"maps"
	"slices"
	"strings"
)

// markdown is the report as a page.
func (r *report) markdown() string {
	var b strings.Builder
	b.WriteString("# Benchmarks\n\nWritten by `go run ./bench`; raw samples are in `results/`. " +
		"All subjects of a table ran in the same minutes, in turn, so ratios mean more than milliseconds. " +
		"Memory, CPU and process limits are on for each of them, and each had to prove its output.\n")
	r.writeGoals(&b)
	r.writeSeries(&b)
	r.writeCounted(&b)
	r.writeField(&b)
	r.writeMemory(&b)
	r.writeBuild(&b)
	r.writeSteps(&b)
	if len(r.NotRun) > 0 {
		b.WriteString("\n## Not run\n\n")
		for _, n := range r.NotRun {
			fmt.Fprintf(&b, "- %s: %s\n", n.Name, n.Why)
		}
	}
	r.writeMachine(&b)
	return b.String()
}

func (r *report) writeGoals(b *strings.Builder) {
	if len(r.Goals) == 0 {
		return
	}
	b.WriteString("\n## Goals\n\n| what | Cloche p50 ms | peer | peer p50 ms | ratio | of the minima | goal | met |\n|---|--:|---|--:|--:|--:|--:|---|\n")
	for _, v := range r.Goals {
		met := "yes"
		if !v.Met {
			met = "**no**"
		}
		if v.Peer == "" {
			fmt.Fprintf(b, "| %s | %.1f | | | | | ≤ %g ms | %s |\n", v.What, v.OursMS, v.Goal, met)
			continue
		}
		if v.Added != nil {
			fmt.Fprintf(b, "| %s | %.2f | %s | %.2f | %+.2f ms | | ≤ %+g ms | %s |\n", v.What, v.OursMS, v.Peer, v.PeerMS, *v.Added, v.Goal, met)
			continue
		}
		fmt.Fprintf(b, "| %s | %.1f | %s | %.1f | %.2f | %.2f | ≤ %g | %s |\n", v.What, v.OursMS, v.Peer, v.PeerMS, v.Ratio, v.MinRatio, v.Goal, met)
	}
}

func (r *report) writeSeries(b *strings.Builder) {
	if len(r.Series) == 0 {
		return
	}
	b.WriteString("\n## Times in ms\n\n`first` is until the first byte of output, `total` until the end with everything taken down." +
		"\n\n| subject | how | n | first min | p50 | p90 | total min | p50 | p90 |\n|---|---|--:|--:|--:|--:|--:|--:|--:|\n")
	for _, s := range r.Series {
		fmt.Fprintf(b, "| %s | %s | %d |%s%s\n", s.Subject, s.How, max(len(s.FirstMS), len(s.TotalMS)), cells(s.FirstMS), cells(s.TotalMS))
	}
}

func cells(samples []float64) string {
	if len(samples) == 0 {
		return " | | |"
	}
	var b strings.Builder
	for _, q := range []float64{0, 0.5, 0.9} {
		fmt.Fprintf(&b, " %s |", precise(quantile(samples, q)))
	}
	return b.String()
}

// precise keeps a decimal more where the number is small.
func precise(ms float64) string {
	if ms < 10 {
		return fmt.Sprintf("%.2f", ms)
	}
	return fmt.Sprintf("%.1f", ms)
}

func (r *report) writeCounted(b *strings.Builder) {
	if len(r.Counted) == 0 {
		return
	}
	b.WriteString("\n## Measured once\n\n| what | | goal |\n|---|--:|---|\n")
	for _, c := range r.Counted {
		goal := ""
		if c.Goal > 0 {
			goal = fmt.Sprintf("≤ %g: %s", c.Goal, map[bool]string{true: "met", false: "**missed**"}[c.Value <= c.Goal])
		}
		fmt.Fprintf(b, "| %s | %.1f %s | %s |\n", c.What, c.Value, c.Unit, goal)
	}
}

func (r *report) writeField(b *strings.Builder) {
	if len(r.Field) == 0 {
		return
	}
	fmt.Fprintf(b, "\n## The field: the same two programs in every sandbox\n\nA static program that prints a word, and a static web application that holds 64 MiB "+
		"and prints the status of its first answer. `start` is from the start to that output, p50 and the least of %d; `at once` until the last of %d applications has answered, "+
		"p50 of %d; `each` is what the machine has less (MemAvailable) for each of %d applications. No network but a loopback.\n\n"+
		"| sandbox | how | program ms | min | application ms | min | at once ms | each MB |\n|---|---|--:|--:|--:|--:|--:|--:|\n", r.Rounds, fieldAtOnce, fieldBursts, fieldHeld)
	for _, f := range r.Field {
		each := "-"
		if f.Held > 0 {
			each = fmt.Sprintf("%.1f", f.EachMB)
		}
		fmt.Fprintf(b, "| %s | %s | %.1f | %.1f | %.1f | %.1f | %.0f | %s |\n", f.Name, f.How, median(f.ProgramMS), quantile(f.ProgramMS, 0), median(f.AppMS), quantile(f.AppMS, 0), median(f.AtOnceMS), each)
	}
}

func (r *report) writeMemory(b *strings.Builder) {
	if len(r.Memory) == 0 {
		return
	}
	b.WriteString("\n## Idle memory of one sandbox in MB (10⁶ bytes)\n\nPSS, the average over the idle sandboxes that ran together. `agent inside` is " +
		"the resident size that the sandbox's own kernel reports for the agent; its pages are counted in the sentry's already.\n\n" +
		"| sandbox | n | PSS | sentry and stubs | gofer | agent inside | less MemAvailable | processes | goal |\n|---|--:|--:|--:|--:|--:|--:|--:|---|\n")
	for _, m := range r.Memory {
		goal := ""
		if m.GoalMB > 0 {
			goal = fmt.Sprintf("≤ %g: %s", m.GoalMB, map[bool]string{true: "met", false: "**missed**"}[m.PSSMB <= m.GoalMB])
		}
		fmt.Fprintf(b, "| %s | %d | %.1f | %.1f | %.1f | %.1f | %.1f | %.1f | %s |\n",
			m.Subject, m.Sandboxes, m.PSSMB, m.SentryMB, m.GoferMB, m.AgentMB, m.AvailableMB, m.Processes, goal)
	}
}

func (r *report) writeBuild(b *strings.Builder) {
	if r.Build == nil {
		return
	}
	f := r.Build
	fmt.Fprintf(b, "\n## Build\n\n| what | |\n|---|--:|\n| `cloche`, stripped | %.1f MB |\n| agent inside it | %.1f MB |\n| `make build`, warm cache | %.1f s |\n",
		f.BinaryMB, f.AgentMB, f.WarmSeconds)
	if f.ColdSeconds > 0 {
		fmt.Fprintf(b, "| `make build`, empty cache, modules downloaded | %.0f s |\n", f.ColdSeconds)
	}
}

func (r *report) writeSteps(b *strings.Builder) {
	for _, p := range r.Steps {
		fmt.Fprintf(b, "\n## Steps of a create: %s\n\n| step | p50 ms |\n|---|--:|\n", p.Part)
		for _, s := range p.Steps {
			fmt.Fprintf(b, "| %s | %.2f |\n", s.Step, s.MS)
		}
	}
}

func (r *report) writeMachine(b *strings.Builder) {
	m := r.Machine
	fmt.Fprintf(b, "\n## Machine\n\n%s, %d cores, %d MiB, %s, Linux %s, cgroup %s, %s, gVisor %s. Commit %s, %s. Load before %s, after %s. %d rounds after %d to warm up.\n",
		m.CPU, m.Cores, m.MemoryMiB, m.System, m.Kernel, m.Cgroup, m.Go, m.GVisor, m.Commit, m.When.Format("2006-01-02 15:04 MST"), m.LoadBefore, m.LoadAfter, r.Rounds, warmups)
	for _, name := range slices.Sorted(maps.Keys(m.Peers)) {
		fmt.Fprintf(b, "\n- %s: %s", name, m.Peers[name])
	}
	if len(m.Peers) > 0 {
		b.WriteString("\n")
	}
}
