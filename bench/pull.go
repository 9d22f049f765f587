//go:build linux

package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"golang.org/x/sys/unix"

	"github.com/cloche-dev/cloche/api"
)

// The subjects of the group image.
const (
	imageStart  = "cloche daemon, Debian image"
	imagePython = "cloche daemon, Debian image, python3"
	hostStart   = "cloche daemon, host, beside the image"
	hostPython  = "cloche daemon, host, python3"
	imageFirst  = "first start of an image, pull and all"
	clochePull  = "cloche image pull"
	podmanPull  = "podman pull"
)

// pulls is how many rounds of pulls there are: each takes seconds.
const pulls = 5

// python is a program that opens some files of its libraries.
func python() []string {
	return []string{"/usr/bin/python3", "-c", "import json, argparse, http.client; print('" + word + "')"}
}

// debian is an image of Debian's own packages in a registry on loopback.
type debian struct {
	ref string
	// bytes are the tar of its root filesystem, packed those that are transferred.
	bytes, packed int64
}

// images compares sandboxes of an image with sandboxes of host, and pulls with
// Podman's.
func (b *bench) images(ctx context.Context) error {
	p, err := b.need(ctx)
	if err != nil {
		return err
	}
	if p.app == nil {
		return nil
	}
	img, err := b.newDebian(ctx)
	if err != nil {
		b.missing("the group image", err)
		return ctx.Err()
	}
	b.report.Machine.Peers["Debian image"] = fmt.Sprintf("mmdebstrap's minbase with python3 as one layer: %d MB, %d MB compressed, registry on loopback", img.bytes/1e6, img.packed/1e6)
	if err := b.imagePulls(ctx, p.app, img); err != nil {
		return err
	}
	said := word + "\n"
	host, image := p.app.spec(), p.app.spec()
	image.Image, image.Pull = img.ref, api.PullNever
	start := func(spec api.SandboxSpec, argv ...string) func(context.Context) (measure, error) {
		return func(ctx context.Context) (measure, error) { return p.app.runIn(ctx, spec, said, argv...) }
	}
	got, err := rounds(ctx, b.n, []subject{
		{name: imageStart, how: "one call over the unix socket, echo, the image is here", run: start(image, "/bin/echo", word)},
		{name: hostStart, how: "the same with the image host", run: start(host, "/bin/echo", word)},
		{name: imagePython, how: "the same, python3 with json, argparse and http.client imported", run: start(image, python()...)},
		{name: hostPython, how: "the same with the image host", run: start(host, python()...)},
	}, b.missing)
	if err != nil {
		return err
	}
	b.report.Series = append(b.report.Series, got...)
	b.report.judge(goals())
	row, err := b.measureIdle(ctx, p.app.idleIn("cloche, Debian image after python3", image))
	if err != nil {
		b.missing("idle memory of the image", err)
		return ctx.Err()
	}
	b.report.Memory = append(b.report.Memory, row)
	return ctx.Err()
}

// imagePulls measures pulls into empty stores.
func (b *bench) imagePulls(ctx context.Context, h *app, img *debian) error {
	subjects := []subject{
		{name: clochePull, how: "fetch, verify, unpack and merge into one file, nothing of it here before", run: func(ctx context.Context) (measure, error) {
			if err := h.forget(ctx); err != nil {
				return measure{}, err
			}
			began := time.Now()
			_, err := h.client.Pull(ctx, api.PullRequest{Image: img.ref})
			return measure{Total: time.Since(began)}, err
		}},
		{name: imageFirst, how: "one call over the unix socket, echo, nothing of the image here", run: func(ctx context.Context) (measure, error) {
			if err := h.forget(ctx); err != nil {
				return measure{}, err
			}
			spec := h.spec()
			spec.Image = img.ref
			return h.runIn(ctx, spec, word+"\n", "/bin/echo", word)
		}},
	}
	if about, err := output(ctx, "podman", "--version"); err != nil {
		b.missing(podmanPull, err)
	} else {
		b.report.Machine.Peers["podman"] = tail(about)
		subjects = append(subjects, subject{name: podmanPull, how: "`podman pull` with its overlay driver, into an empty store", limit: 3 * time.Minute, run: func(ctx context.Context) (measure, error) {
			return b.podman(ctx, img.ref)
		}})
		// Podman binds its store to itself, and one that is killed leaves it so.
		b.defers(func() error {
			if err := unix.Unmount(filepath.Join(b.dir, "podman", "root", "overlay"), unix.MNT_DETACH); err != nil && !errors.Is(err, unix.EINVAL) && !errors.Is(err, unix.ENOENT) {
				return fmt.Errorf("unmount the store of podman: %w", err)
			}
			return nil
		})
	}
	got, err := rounds(ctx, pulls, subjects, b.missing)
	if err != nil {
		return err
	}
	b.report.Series = append(b.report.Series, got...)
	// The last round may have left it out.
	_, err = h.client.Pull(ctx, api.PullRequest{Image: img.ref})
	return err
}

// forget takes away all images of the daemon, and all layers.
func (h *app) forget(ctx context.Context) error {
	_, err := h.client.PruneImages(ctx, api.ImagePruneRequest{MaxBytes: new(int64)})
	return err
}

// podman pulls into a store of its own, which it leaves empty.
func (b *bench) podman(ctx context.Context, ref string) (m measure, err error) {
	store := filepath.Join(b.dir, "podman")
	args := []string{"podman", "--root", filepath.Join(store, "root"), "--runroot", filepath.Join(store, "run"), "--storage-driver", "overlay"}
	if err := os.MkdirAll(store, 0o700); err != nil {
		return m, err
	}
	began := time.Now()
	if _, err := output(ctx, append(args, "pull", "--quiet", "--tls-verify=false", ref)...); err != nil {
		return m, err
	}
	m.Total = time.Since(began)
	_, err = output(ctx, append(args, "rmi", "--force", "--all")...)
	return m, err
}

// newDebian makes the image and serves it until the bench ends.
func (b *bench) newDebian(ctx context.Context) (*debian, error) {
	file := filepath.Join(b.dir, "debian.tar")
	_, err := output(ctx, "mmdebstrap", "--variant=minbase", "--include=python3", "--dpkgopt=path-exclude=/usr/share/doc/*",
		"--dpkgopt=path-exclude=/usr/share/locale/*", "--dpkgopt=path-exclude=/usr/share/man/*", `--customize-hook=rm -rf "$1"/var/lib/apt/lists/* "$1"/var/cache/apt/*`,
		"bookworm", file)
	if err != nil {
		return nil, fmt.Errorf("make a Debian root (package mmdebstrap, or -install): %w", err)
	}
	info, err := os.Stat(file)
	if err != nil {
		return nil, err
	}
	layer, err := tarball.LayerFromFile(file)
	if err != nil {
		return nil, fmt.Errorf("read the root: %w", err)
	}
	img, err := mutate.ConfigFile(empty.Image, &v1.ConfigFile{OS: "linux", Architecture: runtime.GOARCH, Config: v1.Config{Cmd: []string{"python3"}}})
	if err == nil {
		img, err = mutate.AppendLayers(img, layer)
	}
	if err != nil {
		return nil, fmt.Errorf("make the image: %w", err)
	}
	ln, err := (&net.ListenConfig{}).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return nil, fmt.Errorf("listen for the registry: %w", err)
	}
	server := &http.Server{Handler: registry.New(registry.Logger(log.New(io.Discard, "", 0))), ReadHeaderTimeout: time.Minute}
	served := make(chan error, 1)
	go func() { served <- server.Serve(ln) }()
	b.defers(func() error {
		err := server.Close()
		if serr := <-served; !errors.Is(serr, http.ErrServerClosed) {
			err = errors.Join(err, serr)
		}
		return err
	})
	out := &debian{ref: ln.Addr().String() + "/debian:bench", bytes: info.Size()}
	if out.packed, err = layer.Size(); err != nil {
		return nil, fmt.Errorf("pack the layer: %w", err)
	}
	ref, err := name.ParseReference(out.ref)
	if err == nil {
		err = remote.Write(ref, img, remote.WithContext(ctx))
	}
	if err != nil {
		return nil, fmt.Errorf("push the image: %w", err)
	}
	return out, os.Remove(file)
}

// runIn is run in a sandbox of another spec.
func (h *app) runIn(ctx context.Context, spec api.SandboxSpec, want string, argv ...string) (measure, error) {
	var m measure
	began := time.Now()
	s, err := h.client.RunStream(ctx, api.RunRequest{Spec: spec, Exec: api.ExecRequest{Argv: argv}}, nil)
	if err != nil {
		return m, err
	}
	defer s.Close()
	var out strings.Builder
	for {
		ev, err := s.Recv()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return m, err
		}
		if ev.Exit != nil && !ev.Exit.OK() {
			text, _ := json.Marshal(ev.Exit)
			return m, fmt.Errorf("the program ended with %s", text)
		}
		if m.First == 0 && len(ev.Data) > 0 {
			m.First = time.Since(began)
		}
		out.Write(ev.Data)
	}
	m.Total = time.Since(began)
	if out.String() != want {
		return m, fmt.Errorf("the sandbox wrote %q, want %q", tail(out.String()), want)
	}
	return m, nil
}

// idleIn are sandboxes of a spec in which python3 has run.
func (h *app) idleIn(what string, spec api.SandboxSpec) kind {
	k := h.idle()
	var made []string
	k.name, k.goalMB = what, 0
	k.make = func(ctx context.Context) error {
		sb, err := h.client.Create(ctx, spec)
		if err != nil {
			return err
		}
		made = append(made, sb.ID)
		_, err = sb.Exec(ctx, python()...)
		return err
	}
	k.agent = nil
	k.drop = func(ctx context.Context) error {
		var errs []error
		for _, id := range made {
			errs = append(errs, h.client.Remove(ctx, id))
		}
		made = nil
		return errors.Join(errs...)
	}
	return k
}
