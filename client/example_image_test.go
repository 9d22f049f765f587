//go:build linux

package client_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"strings"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/client"
)

func ExampleClient_Pull() {
	c, end := local()
	defer end()
	ctx := client.WithPullProgress(context.Background(), func(p api.PullProgress) { fmt.Println(p.Phase, p.Bytes, "of", p.TotalBytes) })
	img, err := c.Pull(ctx, api.PullRequest{Image: "debian:12"})
	if err != nil {
		log.Panic(err)
	}
	fmt.Println(img.Name, img.Config.Command())
	// Output:
	// resolve 0 of 0
	// download 512 of 1024
	// done 0 of 0
	// debian:12 [echo]
}

func ExampleClient_InspectImage() {
	c, end := local()
	defer end()
	_, err := c.InspectImage(context.Background(), "nothing:1")
	fmt.Println(errors.Is(err, api.ErrNotFound))
	// Output:
	// true
}

func ExampleClient_ImportImage() {
	c, end := local()
	defer end()
	// An archive is what `docker save` writes, say.
	img, err := c.ImportImage(context.Background(), strings.NewReader("an archive"), api.ImportOptions{Name: "tool:1"})
	if err != nil {
		log.Panic(err)
	}
	fmt.Println(img.Name)
	// Output:
	// tool:1
}

func ExampleClient_BuildImage() {
	c, end := local()
	defer end()
	req := api.ImageBuildRequest{Name: "app:1", Dockerfile: "FROM python:3.11-slim\nRUN pip install requests\n"}
	img, err := c.BuildImage(context.Background(), req, nil, func(e api.BuildEvent) error {
		if e.Step != nil {
			fmt.Println(e.Step.Number, e.Step.Text)
		}
		return nil
	})
	if err != nil {
		log.Panic(err)
	}
	fmt.Println(img.Name)
	// Output:
	// 1 FROM python:3.11-slim
	// 2 RUN pip install requests
	// app:1
}

func ExampleClient_PackImage() {
	c, end := local()
	defer end()
	img, err := c.PackImage(context.Background(), api.ImagePackRequest{Name: "base", Paths: []string{"/bin/sh", "/usr/bin/git"}})
	if err != nil {
		log.Panic(err)
	}
	fmt.Println(img.Name, img.Source)
	// Output:
	// base:latest build
}

func ExampleClient_RemoveImage() {
	c, end := local()
	defer end()
	ctx := context.Background()
	if _, err := c.Pull(ctx, api.PullRequest{Image: "debian:12"}); err != nil {
		log.Panic(err)
	}
	fmt.Println(c.RemoveImage(ctx, "debian:12"))
	fmt.Println(errors.Is(c.RemoveImage(ctx, "busy:1"), api.ErrConflict))
	// Output:
	// <nil>
	// true
}

func ExampleClient_PruneImages() {
	c, end := local()
	defer end()
	ctx := context.Background()
	if _, err := c.Pull(ctx, api.PullRequest{Image: "debian:12"}); err != nil {
		log.Panic(err)
	}
	out, err := c.PruneImages(ctx, api.ImagePruneRequest{MaxBytes: new(int64)})
	if err != nil {
		log.Panic(err)
	}
	fmt.Println(len(out.Removed), out.FreedBytes)
	// Output:
	// 1 4096
}
