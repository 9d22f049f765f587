//go:build linux

package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os/exec"
	"path/filepath"
	"time"
)

// The subjects of the group exec.
const (
	daemonExec    = "cloche exec, host"
	staticExec    = "cloche exec, host, static"
	imageExec     = "cloche agent exec, image"
	dockerExec    = "docker exec"
	containerExec = "cloche exec, docker"
	runscExec     = "runsc exec"
	floorExec     = "floor"
	idleExec      = "cloche exec, host, after idling"
	cliExec       = "cloche exec true"
	insideExec    = "floor inside"
)

// execRow is how many execs are run in a row: a round trip of a caller that has
// more than one thing to do.
const execRow = 5

// idle is how long the sandbox did nothing before an exec of idleExec. Its
// kernel has let go of the processors then.
const idle = 50 * time.Millisecond

// spawnInside has the sandbox start a program without a client outside: what
// remains of an exec when all of the app is taken away. It prints the mean in
// ms.
const spawnInside = `
import os, time
began = time.perf_counter()
for _ in range(10):
    os.waitpid(os.posix_spawn("/bin/true", ["true"], {}), 0)
print((time.perf_counter() - began) * 100)
`

// exec compares round trips of `true` in a live sandbox.
func (b *bench) exec(ctx context.Context) (err error) {
	p, err := b.need(ctx)
	if err != nil {
		return err
	}
	var undo []func() error
	defer func() { err = errors.Join(err, unwind(&undo)) }()
	setUp, cancel := context.WithTimeout(ctx, 4*runLimit)
	defer cancel()
	subjects, err := b.execSubjects(setUp, p, &undo)
	if err != nil {
		return err
	}
	series, err := rounds(ctx, b.n, subjects, b.missing)
	if err != nil {
		return err
	}
	b.report.Series = append(b.report.Series, series...)
	b.report.judge(goals())
	return nil
}

func (b *bench) execSubjects(ctx context.Context, p *peers, undo *[]func() error) ([]subject, error) {
	var all []subject
	add := func(name, how string, run func(context.Context) (measure, error)) {
		all = append(all, subject{name: name, how: how, run: run, row: execRow})
	}
	end := func(f func(context.Context) error) {
		*undo = append(*undo, func() error { return f(context.WithoutCancel(ctx)) })
	}
	if p.app != nil {
		sb, err := p.app.create(ctx)
		if err != nil {
			return nil, err
		}
		end(sb.Remove)
		add(daemonExec, "one call over the unix socket, /bin/true of the host, which loads libc through the gofer",
			func(ctx context.Context) (measure, error) { return p.app.execTrue(ctx, sb, "/bin/true") })
		add(cliExec, "whole process `cloche exec SANDBOX -- true`", func(ctx context.Context) (measure, error) { return p.app.cliExec(ctx, sb) })
		add(idleExec, "the same call, 50 ms after the one before", func(ctx context.Context) (measure, error) { return p.app.execIdle(ctx, sb) })
		add(insideExec, "a program inside starts /bin/true and waits for it, mean of ten: gVisor alone",
			func(ctx context.Context) (measure, error) { return p.app.spawnInside(ctx, sb) })
		if program, err := readBusybox(); err == nil {
			const inside = "/root/busybox"
			if err := sb.WriteFile(ctx, inside, program, 0o755); err != nil {
				return nil, err
			}
			add(staticExec, "the same call, static true from the root layer: what the peers below run",
				func(ctx context.Context) (measure, error) { return p.app.execTrue(ctx, sb, inside, "true") })
		}
	}
	if p.image != nil {
		if _, err := p.image.ask("hold"); err != nil {
			return nil, err
		}
		end(func(context.Context) error { _, err := p.image.ask("drop"); return err })
		add(imageExec, "the agent alone over a pipe, static true", func(context.Context) (measure, error) {
			began := time.Now()
			_, err := p.image.ask("exec", "/bin/true")
			return measure{Total: time.Since(began)}, err
		})
	}
	if p.docker != nil && p.app != nil {
		if sb, err := p.app.createOn(ctx, "docker"); err != nil {
			b.missing(containerExec, err)
		} else {
			end(sb.Remove)
			add(containerExec, "one call over the unix socket into a container of that Docker daemon, /bin/true of the host",
				func(ctx context.Context) (measure, error) { return p.app.execTrue(ctx, sb, "/bin/true") })
		}
		id, err := p.docker.detached(ctx, p.app.workspace)
		if err != nil {
			return nil, err
		}
		end(func(ctx context.Context) error { return p.docker.remove(ctx, id) })
		add(dockerExec, "`docker exec`, static true", func(ctx context.Context) (measure, error) {
			return process(ctx, "", nil, p.docker.argv("exec", id, "/bin/true")...)
		})
	}
	if p.runsc != nil && p.image != nil {
		bundle, err := p.runsc.imageBundle("image-sleep", "/bin/sleep", "100000")
		if err != nil {
			return nil, err
		}
		id, err := p.runsc.detached(ctx, bundle)
		if err != nil {
			return nil, err
		}
		end(func(ctx context.Context) error { return p.runsc.remove(ctx, id) })
		add(runscExec, "`runsc exec`, static true", func(ctx context.Context) (measure, error) {
			return process(ctx, "", nil, p.runsc.argv("exec", id, "/bin/true")...)
		})
	}
	floor, stop, err := newFloor(context.WithoutCancel(ctx), filepath.Join(b.dir, "floor.sock"))
	if err != nil {
		return nil, err
	}
	end(stop)
	add(floorExec, "HTTP over a unix socket, then fork and exec of /bin/true on the host: no isolation", floor)
	return all, nil
}

// newFloor serves what no sandbox can beat: the same round trip, and the program
// run on the host.
func newFloor(ctx context.Context, socket string) (run func(context.Context) (measure, error), stop func(context.Context) error, err error) {
	ln, err := (&net.ListenConfig{}).Listen(ctx, "unix", socket)
	if err != nil {
		return nil, nil, fmt.Errorf("listen for the floor: %w", err)
	}
	server := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if err := exec.CommandContext(r.Context(), "/bin/true").Run(); err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
		}
	}), ReadHeaderTimeout: 10 * time.Second}
	served := make(chan error, 1)
	go func() { served <- server.Serve(ln) }()
	transport := &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "unix", socket)
	}}
	caller := &http.Client{Transport: transport}
	run = func(ctx context.Context) (measure, error) {
		req, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://floor/", nil)
		if err != nil {
			return measure{}, err
		}
		began := time.Now()
		res, err := caller.Do(req)
		took := time.Since(began)
		if err != nil {
			return measure{}, err
		}
		res.Body.Close()
		if res.StatusCode != http.StatusOK {
			return measure{}, fmt.Errorf("the floor answered %s", res.Status)
		}
		return measure{Total: took}, nil
	}
	stop = func(ctx context.Context) error {
		transport.CloseIdleConnections()
		err := server.Shutdown(ctx)
		if serr := <-served; !errors.Is(serr, http.ErrServerClosed) {
			err = errors.Join(err, serr)
		}
		return err
	}
	return run, stop, nil
}
