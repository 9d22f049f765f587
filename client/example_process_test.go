//go:build linux

package client_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"strings"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/client"
)

// withCat starts a daemon with a sandbox in which the process "cat" waits for
// input, and returns what ends it.
func withCat() (*client.Client, *client.Sandbox, func()) {
	c, box, end := withBox()
	spec := api.ProcessSpec{ExecRequest: api.ExecRequest{ExecID: "cat", Argv: []string{"cat"}}, OpenStdin: true}
	if _, err := box.StartProcess(context.Background(), spec); err != nil {
		log.Panic(err)
	}
	return c, box, end
}

func ExampleClient_StartProcess() {
	c, box, end := withBox()
	defer end()
	ctx := context.Background()
	spec := api.ProcessSpec{
		// An id of our own makes it safe to ask again when the answer is lost.
		ExecRequest: api.ExecRequest{ExecID: "web", Argv: []string{"sleep"}},
		Restart:     &api.Restart{Policy: api.RestartOnFailure},
		Ready:       &api.Readiness{Port: 8080},
	}
	p, err := c.StartProcess(ctx, box.ID, spec)
	if err != nil {
		log.Panic(err)
	}
	p, err = c.WaitProcess(ctx, box.ID, p.ExecID, api.WaitRequest{Ready: true})
	if err != nil {
		log.Panic(err)
	}
	fmt.Println(p.ExecID, p.State)
	// Output:
	// web ready
}

func ExampleClient_Process() {
	c, box, end := withCat()
	defer end()
	p, err := c.Process(context.Background(), box.ID, "cat")
	if err != nil {
		log.Panic(err)
	}
	fmt.Println(p.Argv, p.State, p.StdinOpen)
	// Output:
	// [cat] running true
}

func ExampleClient_WaitProcess() {
	c, box, end := withCat()
	defer end()
	ctx := context.Background()
	if err := c.SignalProcess(ctx, box.ID, "cat", api.SignalRequest{Signal: "TERM"}); err != nil {
		log.Panic(err)
	}
	p, err := c.WaitProcess(ctx, box.ID, "cat", api.WaitRequest{})
	if err != nil {
		log.Panic(err)
	}
	fmt.Println(p.State, p.Signal)
	// Output:
	// exited TERM
}

func ExampleClient_SignalProcess() {
	c, box, end := withCat()
	defer end()
	ctx := context.Background()
	err := c.SignalProcess(ctx, box.ID, "cat", api.SignalRequest{Signal: "KILL", Scope: api.ScopeTree})
	fmt.Println(err)
	// Output:
	// <nil>
}

func ExampleClient_ResizeProcess() {
	c, box, end := withCat()
	defer end()
	err := c.ResizeProcess(context.Background(), box.ID, "cat", api.Size{Rows: 0, Cols: 80})
	fmt.Println(errors.Is(err, api.ErrInvalid))
	// Output:
	// true
}

func ExampleClient_WriteStdin() {
	c, box, end := withCat()
	defer end()
	ctx := context.Background()
	start := int64(0)
	for range 2 { // the second time it is a repeat, and ignored
		ack, err := c.WriteStdin(ctx, box.ID, "cat", &start, strings.NewReader("a line\n"), false)
		if err != nil {
			log.Panic(err)
		}
		fmt.Println(ack.Offset)
	}
	// Output:
	// 7
	// 7
}

func ExampleClient_CloseStdin() {
	c, box, end := withCat()
	defer end()
	ctx := context.Background()
	if _, err := c.CloseStdin(ctx, box.ID, "cat"); err != nil {
		log.Panic(err)
	}
	p, err := c.WaitProcess(ctx, box.ID, "cat", api.WaitRequest{})
	if err != nil {
		log.Panic(err)
	}
	fmt.Println(p.State, *p.ExitCode)
	// Output:
	// exited 0
}

func ExampleClient_RemoveProcess() {
	c, box, end := withCat()
	defer end()
	ctx := context.Background()
	if err := c.RemoveProcess(ctx, box.ID, "cat"); err != nil {
		log.Panic(err)
	}
	_, err := c.Process(ctx, box.ID, "cat")
	fmt.Println(errors.Is(err, api.ErrNotFound))
	// Output:
	// true
}

func ExampleClient_Attach() {
	c, box, end := withCat()
	defer end()
	ctx := context.Background()
	a, err := c.Attach(ctx, box.ID, "cat", api.AttachRequest{Exclusive: true})
	if err != nil {
		log.Panic(err)
	}
	defer a.Close() // which leaves the process running
	if _, err := io.WriteString(a, "hello\n"); err != nil {
		log.Panic(err)
	}
	for {
		ev, err := a.Recv()
		if err != nil {
			log.Panic(err)
		}
		switch {
		case ev.Gap != nil:
			fmt.Println("missing:", ev.Gap.Bytes)
		case ev.Exit != nil:
			fmt.Println("exit", *ev.Exit.ExitCode)
			return
		case len(ev.Data) > 0:
			fmt.Print(ev.Position, " ", ev.Stream, " ", string(ev.Data))
			if err := a.CloseWrite(); err != nil {
				log.Panic(err)
			}
		}
	}
	// Output:
	// 0 stdout hello
	// exit 0
}

func ExampleAttachment_Copy() {
	c, box, end := withCat()
	defer end()
	ctx := context.Background()
	if _, err := box.WriteStdin(ctx, "cat", nil, strings.NewReader("all of its output\n"), true); err != nil {
		log.Panic(err)
	}
	beginning := int64(0)
	a, err := c.Attach(ctx, box.ID, "cat", api.AttachRequest{Since: &beginning})
	if err != nil {
		log.Panic(err)
	}
	defer a.Close()
	var out strings.Builder
	res, err := a.Copy(&out, nil)
	if err != nil {
		log.Panic(err)
	}
	fmt.Print(out.String(), res.OK(), "\n")
	// Output:
	// all of its output
	// true
}

func ExampleSandbox_LogsWith() {
	_, box, end := withCat()
	defer end()
	ctx := context.Background()
	if _, err := box.WriteStdin(ctx, "cat", nil, strings.NewReader("0123456789"), true); err != nil {
		log.Panic(err)
	}
	since := int64(4)
	o := api.LogOptions{ExecID: "cat", Since: &since, Follow: true}
	err := box.LogsWith(ctx, o, func(e api.LogEntry) error {
		if e.End != "" {
			fmt.Println("end:", e.End)
			return nil
		}
		fmt.Println(e.Position, string(e.Data))
		return nil
	})
	if err != nil {
		log.Panic(err)
	}
	// Output:
	// 4 456789
	// end: exited
}
