//go:build linux

package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
)

// peers are what the groups run. Each is nil when it is not there; that it is
// missing has then been noted.
type peers struct {
	app    *app
	image  *imageEngine // with a sentry ready
	fresh  *imageEngine // without
	runsc  *stockRunsc
	docker *docker
	host   *hostImage
	bwrap  string
}

// needDaemon is need for a group that measures a daemon of Cloche's.
func (b *bench) needDaemon(ctx context.Context) (*peers, error) {
	p, err := b.need(ctx)
	if err == nil && p.app == nil {
		err = errors.New("the daemon does not run")
	}
	return p, err
}

// need starts each missing peer. It is called at the begin of a group, so
// that a build is timed before anything else runs.
func (b *bench) need(ctx context.Context) (*peers, error) {
	if b.started != nil {
		return b.started, nil
	}
	if err := b.product(ctx); err != nil {
		return nil, err
	}
	p := &peers{}
	b.started = p
	program, err := readBusybox()
	image := filepath.Join(b.dir, "busybox.erofs")
	if err == nil {
		err = writeErofs(image, program)
	}
	if err != nil {
		b.missing("everything with the EROFS image, and Docker", err)
	} else {
		b.report.Machine.Peers["image"] = "Debian's busybox-static, one EROFS file for Cloche and runsc, the same files by docker import"
		start(b, "Cloche with the EROFS image", &p.image, func() (*imageEngine, error) { return newImageEngine(ctx, b, image, true) })
		start(b, "Cloche with the EROFS image and nothing ready", &p.fresh, func() (*imageEngine, error) { return newImageEngine(ctx, b, image, false) })
		start(b, "docker", &p.docker, func() (*docker, error) { return newDocker(ctx, b, program) })
	}
	start(b, "Cloche's daemon", &p.app, func() (*app, error) { return b.daemon(ctx) })
	start(b, "runsc", &p.runsc, func() (*stockRunsc, error) { return newRunsc(ctx, b, image) })
	if p.app != nil {
		start(b, "the image host", &p.host, func() (*hostImage, error) {
			if _, err := p.app.run(ctx, word+"\n", "/bin/echo", word); err != nil {
				return nil, err
			}
			h, err := p.app.hostImage()
			return &h, err
		})
	}
	if p.bwrap, err = findBwrap(ctx, b); err != nil {
		b.missing("bubblewrap", err)
	}
	return p, ctx.Err()
}

// daemon is the product alone, for groups that need nothing else.
func (b *bench) daemon(ctx context.Context) (*app, error) {
	if b.served != nil {
		return b.served, nil
	}
	if err := b.product(ctx); err != nil {
		return nil, err
	}
	h, err := newApp(ctx, b)
	if err != nil {
		return nil, err
	}
	b.served = h
	return h, nil
}

// start sets where to what begin returns, or notes why it is missing.
func start[T any](b *bench, name string, where **T, begin func() (*T, error)) {
	got, err := begin()
	if err != nil {
		b.missing(name, err)
		return
	}
	*where = got
}

func findBwrap(ctx context.Context, b *bench) (string, error) {
	const path = "/usr/bin/bwrap"
	about, err := output(ctx, path, "--version")
	if err != nil {
		return "", errors.Join(errors.New("bwrap does not run (package bubblewrap, or -install)"), err)
	}
	b.report.Machine.Peers["bwrap"] = tail(about)
	return path, nil
}

// install installs the peers from the distribution. Their services are not
// started: the bench starts a Docker daemon of its own.
func install(ctx context.Context) error {
	for _, argv := range [][]string{
		{"apt-get", "update", "-qq"},
		{"apt-get", "install", "-y", "-qq", "--no-install-recommends", "docker.io", "busybox-static", "bubblewrap", "mmdebstrap", "podman", "crun", "runc", "ripgrep", "socat"},
	} {
		cmd := command(ctx, argv...)
		// With this, Debian's init scripts are told that nothing may be started.
		cmd.Env = append(os.Environ(), "DEBIAN_FRONTEND=noninteractive", "RUNLEVEL=1")
		cmd.Stdout, cmd.Stderr = os.Stderr, os.Stderr
		if err := cmd.Run(); err != nil {
			return fmt.Errorf("%s: %w", argv[0], err)
		}
	}
	return nil
}
