//go:build linux

package client_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"os"
	"time"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/client"
)

func ExampleClient_Create() {
	c, end := local()
	defer end()
	ctx := context.Background()
	box, err := c.Create(ctx, api.SandboxSpec{
		Labels: map[string]string{"team": "red"},
		Limits: api.Limits{MemoryBytes: 512 << 20},
	})
	if err != nil {
		log.Panic(err)
	}
	defer box.Remove(ctx)
	fmt.Println(box.ID, box.State, box.Labels["team"])
	// Output:
	// sb-1 running red
}

func ExampleClient_CreateProgress() {
	c, end := local()
	defer end()
	ctx := context.Background()
	box, err := c.CreateProgress(ctx, api.SandboxSpec{}, func(step string) { fmt.Println(step) })
	if err != nil {
		log.Panic(err)
	}
	fmt.Println(box.State)
	// Output:
	// image
	// engine
	// running
}

func ExampleClient_Get() {
	c, box, end := withBox()
	defer end()
	ctx := context.Background()
	found, err := c.Get(ctx, "box")
	if err != nil {
		log.Panic(err)
	}
	fmt.Println(found.ID == box.ID)
	_, err = c.Get(ctx, "other")
	fmt.Println(errors.Is(err, api.ErrNotFound))
	// Output:
	// true
	// true
}

func ExampleClient_List() {
	c, box, end := withBox()
	defer end()
	ctx := context.Background()
	page, err := c.List(ctx, api.ListOptions{States: []api.State{api.StateRunning}})
	if err != nil {
		log.Panic(err)
	}
	fmt.Println(len(page.Sandboxes), page.Sandboxes[0].Name == box.Name)
	// Output:
	// 1 true
}

func ExampleClient_ListAll() {
	c, box, end := withBox()
	defer end()
	ctx := context.Background()
	for sb, err := range c.ListAll(ctx, api.ListOptions{Limit: 1}) {
		if err != nil {
			log.Panic(err)
		}
		fmt.Println(sb.Name == box.Name)
	}
	// Output:
	// true
}

func ExampleClient_Remove() {
	c, box, end := withBox()
	defer end()
	ctx := context.Background()
	if err := c.Remove(ctx, box.ID); err != nil {
		log.Panic(err)
	}
	_, err := c.Get(ctx, box.ID)
	fmt.Println(errors.Is(err, api.ErrNotFound))
	// Output:
	// true
}

func ExampleClient_Stop() {
	c, box, end := withBox()
	defer end()
	ctx := context.Background()
	grace := int64(500)
	sb, err := c.Stop(ctx, box.ID, api.StopOptions{GraceMS: &grace})
	if err != nil {
		log.Panic(err)
	}
	fmt.Println(sb.State)
	// Output:
	// stopped
}

func ExampleClient_Kill() {
	c, box, end := withBox()
	defer end()
	ctx := context.Background()
	sb, err := c.Kill(ctx, box.ID)
	if err != nil {
		log.Panic(err)
	}
	fmt.Println(sb.State)
	// Output:
	// stopped
}

func ExampleClient_Exec() {
	c, box, end := withBox()
	defer end()
	ctx := context.Background()
	res, err := c.Exec(ctx, box.ID, api.ExecRequest{Argv: []string{"echo", "hello"}})
	if err != nil {
		log.Panic(err)
	}
	fmt.Print(res.OK(), " ", res.Output())
	// Output:
	// true hello
}

func ExampleClient_Exec_timeout() {
	c, box, end := withBox()
	defer end()
	ctx := context.Background()
	timeout := int64(20)
	res, err := c.Exec(ctx, box.ID, api.ExecRequest{Argv: []string{"sleep", "60"}, TimeoutMS: &timeout})
	if err != nil {
		log.Panic(err)
	}
	fmt.Print(res.OK(), " ", res.TimedOut, " ", res.Output())
	// Output:
	// false true asleep
}

func ExampleClient_Shell() {
	c, box, end := withBox()
	defer end()
	ctx := context.Background()
	res, err := c.Shell(ctx, box.ID, "echo hello")
	if err != nil {
		log.Panic(err)
	}
	fmt.Print(res.Output())
	// Output:
	// hello
}

func ExampleClient_Run() {
	c, end := local()
	defer end()
	ctx := context.Background()
	r, err := c.Run(ctx, api.RunRequest{Exec: api.ExecRequest{Argv: []string{"false"}}})
	if err != nil {
		log.Panic(err)
	}
	fmt.Println(*r.Result.ExitCode, r.Sandbox.Engine)
	// Output:
	// 1 fake
}

func ExampleClient_RunShell() {
	c, end := local()
	defer end()
	ctx := context.Background()
	res, err := c.RunShell(ctx, "echo hello", client.OneShot{Timeout: 10 * time.Second})
	if err != nil {
		log.Panic(err)
	}
	fmt.Print(res.Output())
	// Output:
	// hello
}

func ExampleClient_RunPython() {
	c, end := local()
	defer end()
	ctx := context.Background()
	res, err := c.RunPython(ctx, "print(6*7)", client.OneShot{
		SandboxSpec: api.SandboxSpec{Labels: map[string]string{"team": "red"}},
		Timeout:     10 * time.Second,
	})
	if err != nil {
		log.Panic(err)
	}
	fmt.Print(res.Output())
	// Output:
	// 42
}

func ExampleClient_RunStream() {
	c, end := local()
	defer end()
	ctx := context.Background()
	st, err := c.RunStream(ctx, api.RunRequest{Exec: api.ExecRequest{Argv: []string{"cat"}}}, nil)
	if err != nil {
		log.Panic(err)
	}
	defer st.Close()
	if _, err := io.WriteString(st, "through the sandbox\n"); err != nil {
		log.Panic(err)
	}
	if err := st.CloseWrite(); err != nil {
		log.Panic(err)
	}
	res, err := st.Copy(os.Stdout, os.Stderr)
	if err != nil {
		log.Panic(err)
	}
	fmt.Println(res.OK())
	// Output:
	// through the sandbox
	// true
}

func ExampleClient_ExecStream() {
	c, box, end := withBox()
	defer end()
	ctx := context.Background()
	st, err := c.ExecStream(ctx, box.ID, api.ExecRequest{Argv: []string{"both"}})
	if err != nil {
		log.Panic(err)
	}
	defer st.Close()
	for {
		ev, err := st.Recv()
		if err != nil {
			log.Panic(err)
		}
		if ev.Exit != nil {
			fmt.Println("exit", *ev.Exit.ExitCode)
			return
		}
		fmt.Print(ev.Seq, " ", ev.Stream, " ", string(ev.Data))
	}
	// Output:
	// 0 stdout 0
	// 1 stderr 1
	// 2 stdout 2
	// 3 stderr 3
	// exit 0
}

func ExampleClient_Processes() {
	c, box, end := withBox()
	defer end()
	ctx := context.Background()
	if _, err := box.Exec(ctx, "false"); err != nil {
		log.Panic(err)
	}
	ps, err := c.Processes(ctx, box.ID)
	if err != nil {
		log.Panic(err)
	}
	fmt.Println(ps[0].Argv, ps[0].Running, *ps[0].ExitCode)
	// Output:
	// [false] false 1
}

func ExampleClient_Logs() {
	c, box, end := withBox()
	defer end()
	ctx := context.Background()
	if _, err := box.Exec(ctx, "both"); err != nil {
		log.Panic(err)
	}
	err := c.Logs(ctx, box.ID, api.LogOptions{Stream: api.Stderr}, func(e api.LogEntry) error {
		fmt.Print(string(e.Data))
		return nil
	})
	if err != nil {
		log.Panic(err)
	}
	// Output:
	// 1
	// 3
}

func ExampleClient_Images() {
	c, end := local()
	defer end()
	ctx := context.Background()
	l, err := c.Images(ctx)
	if err != nil {
		log.Panic(err)
	}
	fmt.Println(l.Images[0].Name)
	// Output:
	// host
}

func ExampleClient_Status() {
	c, end := local()
	defer end()
	ctx := context.Background()
	s, err := c.Status(ctx)
	if err != nil {
		log.Panic(err)
	}
	fmt.Println(s.Enabled, s.Available, s.Engine.Name)
	// Output:
	// true true fake
}

func ExampleClient_Doctor() {
	c, end := local()
	defer end()
	ctx := context.Background()
	d, err := c.Doctor(ctx)
	if err != nil {
		log.Panic(err)
	}
	for _, e := range d.Engines {
		fmt.Println(e.Name, e.Usable)
	}
	// Output:
	// fake true
}

func ExampleClient_Version() {
	c, end := local()
	defer end()
	ctx := context.Background()
	v, err := c.Version(ctx)
	if err != nil {
		log.Panic(err)
	}
	fmt.Println(v.Version, v.API)
	// Output:
	// 1.0.0 v1
}

func ExampleSandbox_Exec() {
	_, box, end := withBox()
	defer end()
	ctx := context.Background()
	res, err := box.Exec(ctx, "echo", "two  words")
	if err != nil {
		log.Panic(err)
	}
	fmt.Print(res.Output())
	// Output:
	// two  words
}

func ExampleSandbox_ExecWith() {
	_, box, end := withBox()
	defer end()
	ctx := context.Background()
	res, err := box.ExecWith(ctx, api.ExecRequest{Argv: []string{"cat"}, Stdin: api.Bytes("input")})
	if err != nil {
		log.Panic(err)
	}
	fmt.Println(string(res.Stdout))
	// Output:
	// input
}

func ExampleSandbox_Shell() {
	_, box, end := withBox()
	defer end()
	ctx := context.Background()
	res, err := box.Shell(ctx, "echo hello")
	if err != nil {
		log.Panic(err)
	}
	fmt.Print(res.Output())
	// Output:
	// hello
}

func ExampleSandbox_Logs() {
	_, box, end := withBox()
	defer end()
	ctx := context.Background()
	if _, err := box.Exec(ctx, "echo", "for the record"); err != nil {
		log.Panic(err)
	}
	text, err := box.Logs(ctx, 10)
	if err != nil {
		log.Panic(err)
	}
	fmt.Print(text)
	// Output:
	// for the record
}

func ExampleSandbox_Stop() {
	_, box, end := withBox()
	defer end()
	ctx := context.Background()
	if err := box.Stop(ctx); err != nil {
		log.Panic(err)
	}
	fmt.Println(box.State)
	// Output:
	// stopped
}

func ExampleSandbox_Kill() {
	_, box, end := withBox()
	defer end()
	ctx := context.Background()
	if err := box.Kill(ctx); err != nil {
		log.Panic(err)
	}
	fmt.Println(box.State)
	// Output:
	// stopped
}

func ExampleFromContext() {
	c, end := local()
	defer end()
	ctx := context.Background()
	ctx = client.NewContext(ctx, c)
	attached, err := client.FromContext(ctx)
	fmt.Println(attached == c, err)
	_, err = client.FromContext(context.Background())
	fmt.Println(errors.Is(err, api.ErrUnavailable))
	// Output:
	// true <nil>
	// true
}
