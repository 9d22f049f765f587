//go:build linux

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/cloche-dev/cloche/api"
)

// The subjects of pages and of builds.
const (
	pageURL     = "a page by the URL of its port"
	pageForward = "a page over a forwarded port"
	buildCached = "image build, ten cached steps"
)

// portSubjects are a page of a program in a sandbox, by two ways, each with a connection of its own.
func portSubjects(ctx context.Context, a *app, undo *[]func() error) ([]subject, error) {
	sb, err := a.client.Create(ctx, api.SandboxSpec{})
	if err != nil {
		return nil, err
	}
	*undo = append(*undo, func() error { return sb.Remove(context.WithoutCancel(ctx)) })
	const port = 8000
	server, err := a.client.StartProcess(ctx, sb.ID, api.ProcessSpec{
		ExecRequest: api.ExecRequest{Argv: []string{"python3", "-m", "http.server", "8000"}}, Ready: &api.Readiness{Port: port},
	})
	if err != nil {
		return nil, err
	}
	if _, err := a.client.WaitProcess(ctx, sb.ID, server.ExecID, api.WaitRequest{Ready: true}); err != nil {
		return nil, err
	}
	opened, err := a.client.OpenPort(ctx, sb.ID, api.PortSpec{Port: port})
	if err != nil {
		return nil, err
	}
	at, err := url.Parse(opened.URL)
	if err != nil {
		return nil, err
	}
	get := func(address string, dial func(ctx context.Context, network, addr string) (net.Conn, error)) func(context.Context) (measure, error) {
		c := &http.Client{Transport: &http.Transport{DialContext: dial, DisableKeepAlives: true}}
		return func(ctx context.Context) (measure, error) {
			r, err := http.NewRequestWithContext(ctx, http.MethodGet, address, nil)
			if err != nil {
				return measure{}, err
			}
			r.Header.Set(api.PortTokenHeader, opened.Token)
			began := time.Now()
			res, err := c.Do(r)
			if err != nil {
				return measure{}, err
			}
			_, err = io.Copy(io.Discard, res.Body)
			took := time.Since(began)
			if res.StatusCode != http.StatusOK {
				err = fmt.Errorf("the page has status %d", res.StatusCode)
			}
			return measure{Total: took}, errors.Join(err, res.Body.Close())
		}
	}
	byURL := get(opened.URL, func(ctx context.Context, network, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, network, net.JoinHostPort("127.0.0.1", at.Port())) // the name is one of localhost's
	})
	forwarded := get("http://127.0.0.1:8000/", func(ctx context.Context, _, _ string) (net.Conn, error) { return sb.DialPort(ctx, port) })
	if _, err := byURL(ctx); err != nil {
		return nil, err
	}
	return []subject{
		{name: pageURL, how: "GET of a Python server, a new connection", run: byURL, row: execRow},
		{name: pageForward, how: "the same over DialPort of the Go client", run: forwarded, row: execRow},
	}, nil
}

// buildSubject is a build that runs nothing: each of its ten steps has a layer in the cache.
func buildSubject(ctx context.Context, a *app) ([]subject, error) {
	req := api.ImageBuildRequest{Name: "bench:1", Dockerfile: "FROM host\n" + strings.Repeat("RUN date +%N > /written\n", 10)}
	build := func(ctx context.Context) (cached int, err error) {
		_, err = a.client.BuildImage(ctx, req, nil, func(e api.BuildEvent) error {
			if e.Step != nil && e.Step.Cached {
				cached++
			}
			return nil
		})
		return cached, err
	}
	if _, err := build(ctx); err != nil {
		return nil, err
	}
	return []subject{{name: buildCached, how: "BuildImage of the Go client", run: func(ctx context.Context) (measure, error) {
		began := time.Now()
		cached, err := build(ctx)
		took := time.Since(began)
		if err == nil && cached != 10 {
			err = fmt.Errorf("%d steps were cached", cached)
		}
		return measure{Total: took}, err
	}}}, nil
}
