//go:build linux

package main

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/bench/sleepers"
	"github.com/cloche-dev/cloche/client"
)

// Subjects of the group suspend: an interpreter that has imported 20 modules and holds 64 MiB which it has computed.
const (
	suspendSave   = "suspend, an interpreter of 64 MiB"
	suspendWake   = "exec in a suspended sandbox → its interpreter's answer"
	suspendAwake  = "exec in a running sandbox → its interpreter's answer"
	suspendResume = "resume, an interpreter of 64 MiB"
	suspendCold   = "create, start the interpreter → its answer"
	forkOne       = "fork a running sandbox → the interpreter's answer in the fork"
	forkMany      = "fork a running sandbox into 20 → all interpreters' answers"
	forkSuspended = "fork a suspended sandbox into 20 → all interpreters' answers"
	forkPause     = "pause of the parent of a fork, an interpreter of 64 MiB"
	forkPauseMore = "pause of the parent of a fork, and 512 MiB more"
	memoryCreate  = "create from a snapshot with memory, a web app of 64 MiB → first 200"
	memoryCold    = "create, start the web app of 64 MiB → first 200"
)

// Subjects of the group sleepers: registered sandboxes of a small web app, awake of which run.
const (
	sleepersMake = "create one of 1,000 from a snapshot with memory, and suspend it"
	sleepersWake = "request to a suspended one of 1,000, 50 of which run → its answer"
	sleepersEach = "4 such requests at once → the slowest answer"
	registered   = 1000
	awake        = 50
)

// manyForks is how many forks are many.
const manyForks = 20

// suspendProgram answers by a pair of named pipes when it is ready.
const suspendProgram = `
import asyncio, ast, cProfile, csv, ctypes, dataclasses, decimal, email.message, fractions, http.client, inspect, json, logging, random
import sqlite3, statistics, subprocess, unittest, urllib.request, xml.dom.minidom, os
state = bytearray()
rng = random.Random(7)
while len(state) < 64 << 20: state += rng.randbytes(1 << 20)
os.mkfifo("/tmp/in"); os.mkfifo("/tmp/out")
while True:
    with open("/tmp/in") as f: f.read()
    with open("/tmp/out", "w") as f: f.write("%d\n" % (state[12345] + len(state)))
`

// suspendAsk asks the interpreter.
const suspendAsk = `until test -p /tmp/out; do sleep 0.01; done; echo > /tmp/in; cat /tmp/out`

// interpreter creates a sandbox and starts the program in it.
func interpreter(ctx context.Context, c *client.Client, spec api.SandboxSpec) (*client.Sandbox, error) {
	spec.Workspace, spec.AutoResume = nil, true
	sb, err := c.Create(ctx, spec)
	if err != nil {
		return nil, fmt.Errorf("create: %w", err)
	}
	if _, err = sb.StartProcess(ctx, api.ProcessSpec{ExecRequest: api.ExecRequest{Argv: []string{"python3", "-c", suspendProgram}}}); err != nil {
		return nil, errors.Join(err, sb.Remove(context.WithoutCancel(ctx)))
	}
	return sb, nil
}

// ask returns the interpreter's answer.
func ask(ctx context.Context, sb *client.Sandbox) (string, error) {
	res, err := sb.Exec(ctx, "sh", "-c", suspendAsk)
	if err != nil {
		return "", err
	}
	if !res.OK() {
		err = fmt.Errorf("the interpreter was not asked: %s", tail(string(res.Stderr)))
	}
	return string(res.Stdout), err
}

// suspend measures suspends to the disk and what follows them.
func (b *bench) suspend(ctx context.Context) (err error) {
	p, err := b.needDaemon(ctx)
	if err != nil {
		return err
	}
	c := p.app.client
	sb, err := interpreter(ctx, c, p.app.spec())
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, sb.Remove(context.WithoutCancel(ctx))) }()
	want, err := ask(ctx, sb)
	if err != nil {
		return err
	}
	answer := func(ctx context.Context, sb *client.Sandbox) error {
		got, err := ask(ctx, sb)
		if err == nil && got != want {
			err = fmt.Errorf("the interpreter answered %q, want %q", got, want)
		}
		return err
	}
	timed := func(before, do func(context.Context) error) func(context.Context) (measure, error) {
		return func(ctx context.Context) (m measure, err error) {
			if err := before(ctx); err != nil {
				return m, err
			}
			began := time.Now()
			err = do(ctx)
			m.First = time.Since(began)
			m.Total = m.First
			return m, err
		}
	}
	suspended := func(ctx context.Context) error { _, err := c.Suspend(ctx, sb.ID); return err }
	running := func(ctx context.Context) error { return answer(ctx, sb) }
	series, err := rounds(ctx, b.n, []subject{
		{name: suspendSave, how: "Suspend over the socket", run: timed(running, suspended)},
		{name: suspendResume, how: "Resume over the socket", run: timed(suspended, func(ctx context.Context) error { _, err := c.Resume(ctx, sb.ID); return err })},
		{name: suspendWake, how: "one exec, which resumes it", run: timed(suspended, running)},
		{name: suspendAwake, how: "the same without a suspend", run: timed(running, running)},
		{name: suspendCold, how: "Create, Start and one exec, in a ready sandbox; removed again, not timed", run: func(ctx context.Context) (m measure, err error) {
			began := time.Now()
			cold, err := interpreter(ctx, c, p.app.spec())
			if err != nil {
				return m, err
			}
			err = answer(ctx, cold)
			m.First = time.Since(began)
			m.Total = m.First
			return m, errors.Join(err, cold.Remove(context.WithoutCancel(ctx)))
		}},
	}, b.missing)
	if err != nil {
		return err
	}
	b.report.Series = append(b.report.Series, series...)
	if err := errors.Join(b.forks(ctx, c, sb, answer), b.fromMemory(ctx, p.app)); err != nil {
		return err
	}
	b.report.judge(goals())
	return nil
}

// fromMemory measures creates from a snapshot with memory.
func (b *bench) fromMemory(ctx context.Context, app *app) (err error) {
	c := app.client
	sb, err := sleepers.Start(ctx, c, app.spec(), "64")
	if err != nil {
		return err
	}
	snap, err := c.CreateSnapshot(ctx, sb.ID, api.SnapshotRequest{Scope: api.SnapshotMemory})
	if err = errors.Join(err, sb.Remove(context.WithoutCancel(ctx))); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, c.RemoveSnapshot(context.WithoutCancel(ctx), snap.ID)) }()
	timed := func(create func(context.Context) (*client.Sandbox, error)) func(context.Context) (measure, error) {
		return func(ctx context.Context) (m measure, err error) {
			began := time.Now()
			sb, err := create(ctx)
			if err != nil {
				return m, err
			}
			count, err := sleepers.Get(ctx, c, sb.ID)
			m.First = time.Since(began)
			m.Total = m.First
			if err == nil && count != 1 {
				err = fmt.Errorf("the web app has had %d requests", count)
			}
			return m, errors.Join(err, sb.Remove(context.WithoutCancel(ctx)))
		}
	}
	series, err := rounds(ctx, b.n, []subject{
		{name: memoryCreate, how: "Create over the socket and one request by DialPort", run: timed(func(ctx context.Context) (*client.Sandbox, error) {
			return c.Create(ctx, api.SandboxSpec{Snapshot: snap.ID})
		})},
		{name: memoryCold, how: "Create and Start, in a ready sandbox, and the same request", run: timed(func(ctx context.Context) (*client.Sandbox, error) {
			return sleepers.Start(ctx, c, app.spec(), "64")
		})},
	}, b.missing)
	b.report.Series = append(b.report.Series, series...)
	return err
}

// sleepers measures wakes among many suspended sandboxes. Each answer shows whether something of the sandbox was lost.
func (b *bench) sleepers(ctx context.Context) (err error) {
	p, err := b.needDaemon(ctx)
	if err != nil {
		return err
	}
	c := p.app.client
	first, err := sleepers.Start(ctx, c, p.app.spec(), "0")
	if err != nil {
		return err
	}
	snap, err := c.CreateSnapshot(ctx, first.ID, api.SnapshotRequest{Scope: api.SnapshotMemory})
	if err = errors.Join(err, first.Remove(context.WithoutCancel(ctx))); err != nil {
		return err
	}
	set := sleepers.New(c, snap.ID, awake)
	wake := func(n int) func(context.Context) (measure, error) {
		return func(ctx context.Context) (m measure, err error) {
			m.First, m.Total, err = set.Wake(ctx, n)
			return m, err
		}
	}
	defer func() {
		err = errors.Join(err, set.Remove(context.WithoutCancel(ctx)), c.RemoveSnapshot(context.WithoutCancel(ctx), snap.ID))
	}()
	series, err := rounds(ctx, registered-warmups, []subject{{name: sleepersMake, how: "Create and Suspend over the socket", run: func(ctx context.Context) (m measure, err error) { m.First, m.Total, err = set.Add(ctx); return m, err }}}, b.missing)
	b.report.Series = append(b.report.Series, series...)
	if err != nil {
		return err
	}
	series, err = rounds(ctx, b.n*20, []subject{{name: sleepersWake, how: "DialPort and one request; the sandbox that was asked first of 50 is suspended before, not timed", run: wake(1)}}, b.missing)
	b.report.Series = append(b.report.Series, series...)
	if err != nil {
		return err
	}
	series, err = rounds(ctx, b.n*5, []subject{{name: sleepersEach, how: "the fastest as first, and the slowest", run: wake(4)}}, b.missing)
	b.report.Series = append(b.report.Series, series...)
	if err != nil {
		return err
	}
	b.report.judge(goals())
	return set.Lost(ctx)
}

// forks measures forks of a sandbox with an interpreter, which answer asks and checks.
func (b *bench) forks(ctx context.Context, c *client.Client, sb *client.Sandbox, answer func(context.Context, *client.Sandbox) error) error {
	// fork forks the sandbox, and removes the forks, which is not timed.
	fork := func(n int, before func(context.Context) error) func(context.Context) (measure, error) {
		return func(ctx context.Context) (m measure, err error) {
			if err := before(ctx); err != nil {
				return m, err
			}
			began := time.Now()
			forks, err := sb.Fork(ctx, api.ForkRequest{Count: n})
			m.First = time.Since(began)
			var wg sync.WaitGroup
			errs := make([]error, len(forks))
			for i, f := range forks {
				wg.Go(func() { errs[i] = answer(ctx, f) })
			}
			wg.Wait()
			m.Total = time.Since(began)
			for _, f := range forks {
				errs = append(errs, f.Remove(context.WithoutCancel(ctx)))
			}
			return m, errors.Join(append(errs, err)...)
		}
	}
	paused := func(ctx context.Context) (m measure, err error) {
		res, err := c.Fork(ctx, sb.ID, api.ForkRequest{Count: 1})
		for _, f := range res.Succeeded {
			err = errors.Join(err, c.Remove(ctx, f.ID))
		}
		m.First = time.Duration(res.PausedMS) * time.Millisecond
		m.Total = m.First
		return m, err
	}
	running := func(ctx context.Context) error { return answer(ctx, sb) }
	suspended := func(ctx context.Context) error { _, err := c.Suspend(ctx, sb.ID); return err }
	series, err := rounds(ctx, b.n, []subject{
		{name: forkOne, how: "Fork over the socket and one exec", run: fork(1, running)},
		{name: forkMany, how: "Fork over the socket and 20 execs at once", run: fork(manyForks, running)},
		{name: forkSuspended, how: "the same; the parent stays suspended", run: fork(manyForks, suspended)},
		{name: forkPause, how: "what Fork answers", run: func(ctx context.Context) (measure, error) {
			if err := running(ctx); err != nil {
				return measure{}, err
			}
			return paused(ctx)
		}},
	}, b.missing)
	if err != nil {
		return err
	}
	b.report.Series = append(b.report.Series, series...)
	const fill = "import os, time; b = os.urandom(512 << 20); print(1, flush=True); time.sleep(1000)"
	p, err := sb.StartProcess(ctx, api.ProcessSpec{ExecRequest: api.ExecRequest{Argv: []string{"python3", "-c", fill}}, Ready: &api.Readiness{Log: "^1$"}})
	if err == nil {
		_, err = sb.WaitProcess(ctx, p.ExecID, api.WaitRequest{Ready: true, TimeoutMS: 60_000})
	}
	if err != nil {
		return fmt.Errorf("fill the memory: %w", err)
	}
	series, err = rounds(ctx, b.n, []subject{{name: forkPauseMore, how: "what Fork answers", run: paused}}, b.missing)
	b.report.Series = append(b.report.Series, series...)
	return err
}
