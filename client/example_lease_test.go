//go:build linux

package client_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log"

	"github.com/cloche-dev/cloche/api"
)

func ExampleClient_DialPort() {
	c, box, end := withCat()
	defer end()
	ctx := context.Background()
	conn, err := c.DialPort(ctx, box.ID, 7) // where a server sends back what it gets
	if err != nil {
		log.Panic(err)
	}
	defer conn.Close()
	if _, err := io.WriteString(conn, "there and back"); err != nil {
		log.Panic(err)
	}
	if half, ok := conn.(interface{ CloseWrite() error }); ok {
		half.CloseWrite()
	}
	data, err := io.ReadAll(conn)
	if err != nil {
		log.Panic(err)
	}
	fmt.Println(string(data))
	// Output:
	// there and back
}

func ExampleClient_Heartbeat() {
	c, box, end := withCat()
	defer end()
	sb, err := c.Heartbeat(context.Background(), box.ID)
	if err != nil {
		log.Panic(err)
	}
	fmt.Println(sb.ExpiresAt.Sub(sb.CreatedAt))
	// Output:
	// 1h0m0s
}

func ExampleClient_Pause() {
	c, box, end := withCat()
	defer end()
	sb, err := c.Pause(context.Background(), box.ID)
	if err != nil {
		log.Panic(err)
	}
	fmt.Println(sb.State)
	// Output:
	// paused
}

func ExampleClient_Resume() {
	c, box, end := withCat()
	defer end()
	ctx := context.Background()
	if err := box.Pause(ctx); err != nil {
		log.Panic(err)
	}
	sb, err := c.Resume(ctx, box.ID)
	if err != nil {
		log.Panic(err)
	}
	fmt.Println(sb.State)
	// Output:
	// running
}

func ExampleClient_Hold() {
	c, end := local()
	defer end()
	ctx := context.Background()
	held, err := c.Hold(ctx, api.SandboxSpec{Name: "scratch"}, nil)
	if err != nil {
		log.Panic(err)
	}
	defer held.Close() // after which the daemon removes it
	res, err := held.Exec(ctx, "echo", "while it lasts")
	if err != nil {
		log.Panic(err)
	}
	fmt.Print(res.Output())
	// Output:
	// while it lasts
}

func ExampleClient_Events() {
	c, box, end := withCat()
	defer end()
	ctx := context.Background()
	if err := box.Kill(ctx); err != nil {
		log.Panic(err)
	}
	enough := errors.New("enough")
	o := api.EventOptions{Follow: true, Kinds: []api.EventKind{api.EventCreated, api.EventProcessExited}}
	err := c.Events(ctx, o, func(e api.Event) error {
		fmt.Println(e.Kind, e.Name)
		if e.Process != nil {
			fmt.Println(e.Process.ExecID, e.Process.Signal)
			return enough
		}
		return nil
	})
	fmt.Println(err)
	// Output:
	// sandbox.created box
	// process.exited box
	// cat KILL
	// enough
}
