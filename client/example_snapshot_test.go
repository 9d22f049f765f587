//go:build linux

package client_test

import (
	"context"
	"fmt"
	"log"

	"github.com/cloche-dev/cloche/api"
)

func ExampleClient_Diff() {
	c, box, end := withBox()
	defer end()
	d, err := c.Diff(context.Background(), box.ID, api.DiffOptions{Scope: api.DiffRoot})
	if err != nil {
		log.Panic(err)
	}
	fmt.Println(d.Scope, d.Added, d.Changed, d.Removed, d.Bytes)
	// Output:
	// root 1 1 1 30
}

func ExampleClient_DiffAll() {
	c, box, end := withBox()
	defer end()
	for ch, err := range c.DiffAll(context.Background(), box.ID, api.DiffOptions{Limit: 2}) {
		if err != nil {
			log.Panic(err)
		}
		fmt.Printf("%s %q %d\n", ch.Kind, ch.Path, ch.Size)
	}
	// Output:
	// added "a" 10
	// changed "b�" 20
	// removed "c" 0
}

func ExampleClient_CommitWorkspace() {
	c, box, end := withBox()
	defer end()
	ctx := context.Background()
	if err := box.Stop(ctx); err != nil { // a mount cannot change what it is made of
		log.Panic(err)
	}
	d, err := c.CommitWorkspace(ctx, box.ID)
	if err != nil {
		log.Panic(err)
	}
	fmt.Println(d.Added+d.Changed+d.Removed, "paths")
	// Output:
	// 3 paths
}

func ExampleClient_RollbackWorkspace() {
	c, box, end := withBox()
	defer end()
	_, err := c.RollbackWorkspace(context.Background(), box.ID)
	fmt.Println(api.CodeOf(err)) // it runs
	// Output:
	// wrong_state
}

func ExampleClient_CreateSnapshot() {
	c, box, end := withBox()
	defer end()
	snap, err := c.CreateSnapshot(context.Background(), box.ID, api.SnapshotRequest{Name: "ready", Scope: api.SnapshotWorkspace})
	if err != nil {
		log.Panic(err)
	}
	fmt.Println(snap.Name, snap.Scope, snap.Consistent, snap.Left[0].Path)
	// Output:
	// ready workspace true /srv/data
}

func ExampleClient_Snapshots() {
	c, box, end := withBox()
	defer end()
	ctx := context.Background()
	for _, name := range []string{"first", "second"} {
		if _, err := c.CreateSnapshot(ctx, box.ID, api.SnapshotRequest{Name: name}); err != nil {
			log.Panic(err)
		}
	}
	list, err := c.Snapshots(ctx)
	if err != nil {
		log.Panic(err)
	}
	for _, snap := range list.Snapshots {
		fmt.Println(snap.Name)
	}
	// Output:
	// second
	// first
}

func ExampleClient_GetSnapshot() {
	c, box, end := withBox()
	defer end()
	ctx := context.Background()
	made, err := c.CreateSnapshot(ctx, box.ID, api.SnapshotRequest{Name: "ready"})
	if err != nil {
		log.Panic(err)
	}
	snap, err := c.GetSnapshot(ctx, "ready")
	if err != nil {
		log.Panic(err)
	}
	fmt.Println(snap.ID == made.ID, snap.SizeBytes)
	// Output:
	// true 30
}

func ExampleClient_RemoveSnapshot() {
	c, box, end := withBox()
	defer end()
	ctx := context.Background()
	if _, err := c.CreateSnapshot(ctx, box.ID, api.SnapshotRequest{Name: "ready"}); err != nil {
		log.Panic(err)
	}
	if err := c.RemoveSnapshot(ctx, "ready"); err != nil {
		log.Panic(err)
	}
	_, err := c.GetSnapshot(ctx, "ready")
	fmt.Println(api.CodeOf(err))
	// Output:
	// not_found
}
