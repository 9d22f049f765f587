//go:build linux

package client_test

import (
	"context"
	"errors"
	"fmt"
	"log"

	"github.com/cloche-dev/cloche/api"
)

func ExampleClient_CreateWorkspace() {
	c, _, end := withBox()
	defer end()
	ctx := context.Background()
	w, err := c.CreateWorkspace(ctx, api.WorkspaceSpec{Name: "data", SizeBytes: 1 << 30})
	if err != nil {
		log.Panic(err)
	}
	fmt.Println(w.Name, w.SizeBytes, w.Enforced)
	// Output:
	// data 1073741824 kernel
}

func ExampleClient_Workspaces() {
	c, _, end := withBox()
	defer end()
	ctx := context.Background()
	if _, err := c.CreateWorkspace(ctx, api.WorkspaceSpec{Name: "data"}); err != nil {
		log.Panic(err)
	}
	list, err := c.Workspaces(ctx)
	if err != nil {
		log.Panic(err)
	}
	for _, w := range list.Workspaces {
		fmt.Println(w.Name, w.Tenant)
	}
	// Output:
	// data local
}

func ExampleClient_GetWorkspace() {
	c, _, end := withBox()
	defer end()
	ctx := context.Background()
	if _, err := c.CreateWorkspace(ctx, api.WorkspaceSpec{Name: "data", SizeBytes: 1 << 30}); err != nil {
		log.Panic(err)
	}
	w, err := c.GetWorkspace(ctx, "", "data")
	if err != nil {
		log.Panic(err)
	}
	if w.UsedBytes != nil { // nil where it would take a walk
		fmt.Println(*w.UsedBytes, "of", w.SizeBytes)
	}
	// Output:
	// 4096 of 1073741824
}

func ExampleClient_RemoveWorkspace() {
	c, _, end := withBox()
	defer end()
	ctx := context.Background()
	if _, err := c.CreateWorkspace(ctx, api.WorkspaceSpec{Name: "taken"}); err != nil {
		log.Panic(err)
	}
	err := c.RemoveWorkspace(ctx, "", "taken")
	if errors.Is(err, api.ErrConflict) {
		fmt.Println("a sandbox has it")
	}
	_, err = c.GetWorkspace(ctx, "", "../sandboxes")
	fmt.Println(errors.Is(err, api.ErrInvalid))
	// Output:
	// a sandbox has it
	// true
}
