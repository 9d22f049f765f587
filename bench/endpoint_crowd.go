//go:build linux

package main

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/client"
)

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
