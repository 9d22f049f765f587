//go:build linux

package client_test

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"strings"

	"github.com/cloche-dev/cloche/api"
)

func ExampleClient_WriteFile() {
	c, box, end := withBox()
	defer end()
	ctx := context.Background()
	info, err := c.WriteFile(ctx, box.ID, "/workspace/run.sh", []byte("echo hi\n"), 0o755)
	if err != nil {
		log.Panic(err)
	}
	fmt.Printf("%s %d %o\n", info.Name, info.Size, info.Mode)
	// Output:
	// run.sh 8 755
}

func ExampleClient_WriteFileFrom() {
	c, box, end := withBox()
	defer end()
	ctx := context.Background()
	info, err := c.WriteFileFrom(ctx, box.ID, "/workspace/a", strings.NewReader("streamed"), 0)
	if err != nil {
		log.Panic(err)
	}
	fmt.Println(info.Size)
	// Output:
	// 8
}

func ExampleClient_ReadFile() {
	c, box, end := withBox()
	defer end()
	ctx := context.Background()
	if err := box.WriteFile(ctx, "/workspace/a", []byte("content"), 0o644); err != nil {
		log.Panic(err)
	}
	data, err := c.ReadFile(ctx, box.ID, "/workspace/a")
	if err != nil {
		log.Panic(err)
	}
	fmt.Println(string(data))
	// Output:
	// content
}

func ExampleClient_OpenFile() {
	c, box, end := withBox()
	defer end()
	ctx := context.Background()
	if err := box.WriteFile(ctx, "/workspace/a", []byte("content"), 0o644); err != nil {
		log.Panic(err)
	}
	r, info, err := c.OpenFile(ctx, box.ID, "/workspace/a", 3, 2)
	if err != nil {
		log.Panic(err)
	}
	defer r.Close()
	part, err := io.ReadAll(r)
	if err != nil {
		log.Panic(err)
	}
	fmt.Println(string(part), "of", info.Size)
	// Output:
	// te of 7
}

func ExampleClient_StatFile() {
	c, box, end := withBox()
	defer end()
	ctx := context.Background()
	if err := box.WriteFile(ctx, "/workspace/a", []byte("content"), 0o644); err != nil {
		log.Panic(err)
	}
	info, err := c.StatFile(ctx, box.ID, "/workspace/a")
	if err != nil {
		log.Panic(err)
	}
	fmt.Println(info.Type, info.Size)
	// Output:
	// file 7
}

func ExampleClient_ListFiles() {
	c, box, end := withBox()
	defer end()
	ctx := context.Background()
	if err := box.WriteFile(ctx, "/workspace/a", []byte("content"), 0o644); err != nil {
		log.Panic(err)
	}
	l, err := c.ListFiles(ctx, box.ID, "/workspace", "", 0)
	if err != nil {
		log.Panic(err)
	}
	fmt.Println(l.Files[0].Name)
	// Output:
	// a
}

func ExampleClient_MakeDir() {
	c, box, end := withBox()
	defer end()
	ctx := context.Background()
	if err := c.MakeDir(ctx, box.ID, "/workspace/d", 0o755); err != nil {
		log.Panic(err)
	}
	info, err := c.StatFile(ctx, box.ID, "/workspace/d")
	if err != nil {
		log.Panic(err)
	}
	fmt.Println(info.Type)
	// Output:
	// dir
}

func ExampleClient_MoveFile() {
	c, box, end := withBox()
	defer end()
	ctx := context.Background()
	if err := box.WriteFile(ctx, "/workspace/a", []byte("content"), 0o644); err != nil {
		log.Panic(err)
	}
	if err := c.MoveFile(ctx, box.ID, "/workspace/a", "/workspace/b"); err != nil {
		log.Panic(err)
	}
	data, err := box.ReadFile(ctx, "/workspace/b")
	if err != nil {
		log.Panic(err)
	}
	fmt.Println(string(data))
	// Output:
	// content
}

func ExampleClient_RemoveFile() {
	c, box, end := withBox()
	defer end()
	ctx := context.Background()
	if err := box.WriteFile(ctx, "/workspace/a", []byte("content"), 0o644); err != nil {
		log.Panic(err)
	}
	if err := c.RemoveFile(ctx, box.ID, "/workspace/a", false); err != nil {
		log.Panic(err)
	}
	_, err := c.StatFile(ctx, box.ID, "/workspace/a")
	fmt.Println(errors.Is(err, api.ErrNotFound))
	// Output:
	// true
}

func ExampleClient_TarOut() {
	c, box, end := withBox()
	defer end()
	ctx := context.Background()
	if err := box.WriteFile(ctx, "/workspace/a", []byte("content"), 0o644); err != nil {
		log.Panic(err)
	}
	if err := box.WriteFile(ctx, "/workspace/x.sock", nil, 0o644); err != nil {
		log.Panic(err)
	}
	report, err := c.TarOut(ctx, box.ID, "/workspace", api.TarOutOptions{Exclude: []string{".git"}}, io.Discard)
	if err != nil {
		log.Panic(err)
	}
	fmt.Println(report.Entries, "packed;", report.Skipped[0].Path, report.Skipped[0].Reason)
	// Output:
	// 1 packed; /workspace/x.sock is a socket
}

func ExampleClient_TarIn() {
	c, box, end := withBox()
	defer end()
	ctx := context.Background()
	var archive bytes.Buffer
	tw := tar.NewWriter(&archive)
	if err := tw.WriteHeader(&tar.Header{Name: "a", Size: 2, Mode: 0o644}); err != nil {
		log.Panic(err)
	}
	if _, err := tw.Write([]byte("hi")); err != nil {
		log.Panic(err)
	}
	if err := tw.Close(); err != nil {
		log.Panic(err)
	}
	report, err := c.TarIn(ctx, box.ID, "/workspace", api.TarInOptions{Atomic: true}, &archive)
	if err != nil {
		log.Panic(err)
	}
	fmt.Println(report.Entries, report.Bytes)
	// Output:
	// 1 2
}
