//go:build linux

package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/client"
)

const (
	largeUp, largeDown = 100 << 20, 1 << 30
	// idleBoxes have two endpoints each, and idleLook is how long the benchmark watches what
	// they do.
	idleBoxes = 50
	idleLook  = 5 * time.Second
)

// large is what the daemon's memory grows by while a large body goes up and a larger one
// down, each of which is summed on both sides. What was moved before is not counted.
func (e *endpointBench) large(ctx context.Context, engine string, sb *client.Sandbox) ([]counted, error) {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Minute)
	defer cancel()
	before, err := memoryMB(e.app.pid, "VmRSS")
	if err != nil {
		return nil, err
	}
	// From here on the kernel notes the most that it holds.
	if err := os.WriteFile(fmt.Sprintf("/proc/%d/clear_refs", e.app.pid), []byte("5"), 0); err != nil {
		return nil, fmt.Errorf("reset the note of the most memory: %w", err)
	}
	up, err := measured(e.inside(ctx, sb, "up", strconv.Itoa(largeUp), insideURL+"/sum"))("total")
	if err != nil {
		return nil, err
	}
	down, err := measured(e.inside(ctx, sb, "down", strconv.Itoa(largeDown), insideURL+"/bytes?n="+strconv.Itoa(largeDown)))("total")
	if err != nil {
		return nil, err
	}
	most, err := memoryMB(e.app.pid, "VmHWM")
	if err != nil {
		return nil, err
	}
	rate := func(n int, m measure) float64 { return float64(n) / 1e6 / m.Total.Seconds() }
	return []counted{
		{What: "100 MiB up through an endpoint of " + engine + ", in chunks, sums and trailer compared", Value: rate(largeUp, up), Unit: "MB/s"},
		{What: "1 GiB down, the same", Value: rate(largeDown, down), Unit: "MB/s"},
		{What: "the daemon holds more meanwhile, at most", Value: max(0, most-before), Unit: "MB", Goal: 16},
	}, nil
}

// idle is what unused endpoints cost: how often threads of the daemon and of the
// agents are put on a processor, beside as many sandboxes that have none, and memory of
// the daemon's. The engine is the one whose sandboxes do nothing by themselves.
func (e *endpointBench) idle(ctx context.Context) ([]counted, error) {
	without, _, err := e.look(ctx, nil)
	if err != nil {
		return nil, err
	}
	with, mb, err := e.look(ctx, []api.Endpoint{
		{Name: "model", Target: e.target}, {Name: "tools", Target: e.target, Listen: "127.0.0.1:13132"},
	})
	if err != nil {
		return nil, err
	}
	per := idleLook.Seconds() * idleBoxes
	return []counted{
		{What: fmt.Sprintf("%d native sandboxes without endpoints do nothing: threads of daemon and agents put on a processor, each sandbox", idleBoxes), Value: float64(without) / per, Unit: "a second"},
		{What: "the same with two unused endpoints each", Value: float64(with) / per, Unit: "a second"},
		{What: "memory of the daemon for each of these sandboxes, all told", Value: mb * 1000 / idleBoxes, Unit: "kB", Goal: 60},
	}, nil
}

// look makes sandboxes, counts how often daemon and agents are put on a processor while
// no client asks for anything, and what the daemon's memory grew by, and removes them.
func (e *endpointBench) look(ctx context.Context, endpoints []api.Endpoint) (switches int64, mb float64, err error) {
	before, err := memoryMB(e.app.pid, "VmRSS")
	if err != nil {
		return 0, 0, err
	}
	var held []*client.Sandbox
	defer func() {
		for _, sb := range held {
			err = errors.Join(err, sb.Remove(context.WithoutCancel(ctx)))
		}
	}()
	var ids []string
	for range idleBoxes {
		sb, err := e.app.client.Create(ctx, api.SandboxSpec{Engine: "native", Endpoints: endpoints})
		if err != nil {
			return 0, 0, fmt.Errorf("create: %w", err)
		}
		held, ids = append(held, sb), append(ids, sb.ID)
	}
	if err := wait(ctx, settle); err != nil {
		return 0, 0, err
	}
	all, err := e.app.processesIn(ids)
	if err != nil {
		return 0, 0, err
	}
	all = append(all, e.app.pid)
	began := countSwitches(all)
	if err := wait(ctx, idleLook); err != nil {
		return 0, 0, err
	}
	switches = countSwitches(all) - began
	after, err := memoryMB(e.app.pid, "VmRSS")
	return switches, max(0, after-before), err
}

// processesIn are the processes of the host that are in the groups of native sandboxes: at least
// one of each. Groups are found by the engine's records, because the groups of an agent from the pool
// keep their names.
func (h *app) processesIn(ids []string) (pids []int, err error) {
	groups, err := h.nativeGroups(ids)
	if err != nil {
		return nil, err
	}
	seen := map[string]bool{}
	err = eachProcess(func(pid int, dir string) {
		in, err := os.ReadFile(filepath.Join(dir, "cgroup"))
		if err != nil {
			return // it has ended
		}
		for id, group := range groups {
			if strings.Contains(string(in), "/"+group) {
				pids, seen[id] = append(pids, pid), true
				return
			}
		}
	})
	if err == nil && len(seen) != len(ids) {
		err = fmt.Errorf("find processes: %d of %d sandboxes have none in a group of theirs", len(ids)-len(seen), len(ids))
	}
	return pids, err
}

// nativeGroups are the names of the groups of native sandboxes, by sandbox.
func (h *app) nativeGroups(ids []string) (map[string]string, error) {
	records, err := filepath.Glob(filepath.Join(h.home, "engines", "native", "*.json"))
	if err != nil {
		return nil, err
	}
	groups := map[string]string{}
	for _, path := range records {
		data, err := os.ReadFile(path)
		if errors.Is(err, fs.ErrNotExist) {
			continue // of an agent that waited and was taken
		}
		var r struct {
			ID      string   `json:"id"`
			Cgroups []string `json:"cgroups"`
		}
		if err = errors.Join(err, json.Unmarshal(data, &r)); err != nil {
			return nil, fmt.Errorf("read a record of the engine native: %w", err)
		}
		if slices.Contains(ids, r.ID) && len(r.Cgroups) > 0 {
			groups[r.ID] = filepath.Base(r.Cgroups[0])
		}
	}
	if len(groups) != len(ids) {
		return nil, fmt.Errorf("find groups: %d of %d sandboxes have none in their records", len(ids)-len(groups), len(ids))
	}
	return groups, nil
}

// countSwitches is how often threads of processes were put on a processor, ever.
func countSwitches(pids []int) (n int64) {
	for _, pid := range pids {
		states, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/[0-9]*/status", pid))
		for _, status := range states {
			for _, key := range []string{"voluntary_ctxt_switches", "nonvoluntary_ctxt_switches"} {
				one, _ := strconv.ParseInt(field(status, key, ":"), 10, 64) // a thread that ended counts no more
				n += one
			}
		}
	}
	return n
}

// memoryMB is one of the sizes in a process's status, in 10⁶ bytes.
func memoryMB(pid int, key string) (float64, error) {
	text := field(fmt.Sprintf("/proc/%d/status", pid), key, ":")
	kib, err := strconv.ParseInt(strings.TrimSuffix(text, " kB"), 10, 64)
	if err != nil {
		return 0, fmt.Errorf("read the memory of process %d: %w", pid, err)
	}
	return float64(kib) * 1024 / 1e6, nil
}

// A crowd is a batch of evaluations as a training run has it: so many sandboxes at once,
// each so many turns.
const (
	crowd, crowdTurns = 64, 20
	crowdLimit        = 5 * time.Minute
	// crowdMakers is how many of them are made at the same time.
	crowdMakers = 4
)

// crowds runs a crowd on an engine, and as processes of the host's without a sandbox. Any
// turn that fails fails all of it.
func (e *endpointBench) crowds(ctx context.Context, engine string) (rows []counted, err error) {
	ctx, cancel := context.WithTimeout(ctx, crowdLimit)
	defer cancel()
	boxes := make([]*client.Sandbox, crowd)
	defer func() {
		for _, sb := range boxes {
			if sb != nil {
				err = errors.Join(err, sb.Remove(context.WithoutCancel(ctx)))
			}
		}
	}()
	if err := together(crowd, crowdMakers, func(i int) (err error) {
		boxes[i], err = e.app.client.Create(ctx, api.SandboxSpec{Engine: engine, Endpoints: []api.Endpoint{{Name: "model", Target: e.target}}})
		if err != nil {
			return fmt.Errorf("create: %w", err)
		}
		return boxes[i].WriteFile(ctx, callerInside, e.program, 0o755)
	}); err != nil {
		return nil, err
	}
	turns := strconv.Itoa(crowdTurns)
	inside, err := evaluate(crowd, func(i int) (string, error) { return e.inside(ctx, boxes[i], "turns", turns, insideURL) })
	if err != nil {
		return nil, err
	}
	outside, err := evaluate(crowd, func(int) (string, error) { return output(ctx, e.caller, "turns", turns, e.target) })
	if err != nil {
		return nil, err
	}
	name := fmt.Sprintf("%d evaluations of %d turns at once, all of them without an error, in sandboxes of %s", crowd, crowdTurns, engine)
	return []counted{
		{What: name, Value: inside.Total.Seconds(), Unit: "s each"},
		{What: "the same as processes of the host's", Value: outside.Total.Seconds(), Unit: "s each"},
		{What: "more than on the host, " + engine, Value: 100 * (inside.Total.Seconds()/outside.Total.Seconds() - 1), Unit: "%", Goal: 2},
	}, nil
}
