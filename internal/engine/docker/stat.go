package docker

import (
	"context"
	"encoding/json"
	"io"
	"strconv"
	"time"

	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/client"

	"github.com/cloche-dev/cloche/internal/engine"
)

// maxStats bounds an answer of the daemon.
const maxStats = 1 << 20

// Stat implements engine.Statter. It is asked for after every program: so on this
// machine the container's cgroups say it, and the daemon elsewhere, which takes longer
// and knows only of late how many were killed for memory.
func (i *instance) Stat(ctx context.Context) (engine.Stat, error) {
	if i.dead() {
		return engine.Stat{}, i.lost("stat sandbox "+i.rec.ID, nil)
	}
	i.statting.Lock()
	found := i.groups
	i.statting.Unlock()
	if found != nil {
		if s, err := found.stat(); err == nil {
			return s, nil
		}
	}
	s, err := i.stat(ctx)
	if err != nil {
		return engine.Stat{}, i.e.classify(ctx, "stat sandbox "+i.rec.ID, err)
	}
	return s, nil
}

func (i *instance) stat(ctx context.Context) (engine.Stat, error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	inspected, err := i.d.ContainerInspect(ctx, i.rec.Container, client.ContainerInspectOptions{})
	if err != nil {
		return engine.Stat{}, err
	}
	c := inspected.Container
	if c.State == nil || c.State.Pid == 0 {
		return engine.Stat{}, i.lost("stat sandbox "+i.rec.ID, nil)
	}
	if g, ok := findGroups(c.State.Pid, i.rec.Container); ok {
		i.statting.Lock()
		i.groups = &g
		i.statting.Unlock()
		return g.stat()
	}
	answer, err := i.d.ContainerStats(ctx, i.rec.Container, client.ContainerStatsOptions{})
	if err != nil {
		return engine.Stat{}, err
	}
	defer answer.Body.Close()
	var s container.StatsResponse
	if err := json.NewDecoder(io.LimitReader(answer.Body, maxStats)).Decode(&s); err != nil {
		return engine.Stat{}, err
	}
	kills, err := i.eventKills(ctx, c.Created)
	return engine.Stat{MemoryBytes: int64(s.MemoryStats.Usage), CPU: time.Duration(s.CPUStats.CPUUsage.TotalUsage), OOMKills: kills}, err
}

// eventKills counts the daemon's events, of which it keeps the last few hundred.
func (i *instance) eventKills(ctx context.Context, since string) (int64, error) {
	events := i.d.Events(ctx, client.EventsListOptions{
		Since: since, Until: strconv.FormatInt(time.Now().Unix()+1, 10),
		Filters: make(client.Filters).Add("container", i.rec.Container).Add("event", "oom"),
	})
	var n int64
	for {
		select {
		case <-events.Messages:
			n++
		case err := <-events.Err:
			if err == nil || broken(err) {
				return n, nil
			}
			return n, err
		}
	}
}
