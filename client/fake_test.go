//go:build linux

package client_test

import (
	"context"
	"log"
	"net"
	"os"
	"path/filepath"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/client"
	"github.com/cloche-dev/cloche/internal/httpapi"
	"github.com/cloche-dev/cloche/test/mockcore"
)

// local starts a daemon that isolates nothing on a unix socket, and returns its
// client and what ends both.
func local() (*client.Client, func()) {
	c, _, end := start()
	return c, end
}

// withBox is local with a handle to a new sandbox of that name.
func withBox() (*client.Client, *client.Sandbox, func()) {
	c, end := local()
	box, err := c.Create(context.Background(), api.SandboxSpec{Name: "box"})
	if err != nil {
		log.Panic(err)
	}
	return c, box, end
}

func start() (*client.Client, *mockcore.Core, func()) {
	dir, err := os.MkdirTemp("", "cl")
	if err != nil {
		log.Panic(err)
	}
	core := mockcore.New()
	server, err := httpapi.New(httpapi.Options{Core: core, Version: "1.0.0"})
	if err != nil {
		log.Panic(err)
	}
	socket := filepath.Join(dir, client.SocketName)
	ln, err := net.Listen("unix", socket)
	if err != nil {
		log.Panic(err)
	}
	served := make(chan error, 1)
	go func() { served <- server.Serve(ln) }()
	c, err := client.New(client.Options{Host: "unix://" + socket})
	if err != nil {
		log.Panic(err)
	}
	return c, core, func() {
		c.Close()
		if err := server.Shutdown(context.Background()); err != nil {
			log.Panic(err)
		}
		if err := <-served; err != nil {
			log.Panic(err)
		}
		os.RemoveAll(dir)
	}
}
