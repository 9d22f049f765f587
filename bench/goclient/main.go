// Command goclient runs one program in a sandbox for each line of its input, by the Go
// client, and writes how many seconds each took. The benchmark of the Python client
// compares itself with it.
package main

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"os/signal"
	"time"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/client"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := run(ctx); err != nil {
		fmt.Fprintln(os.Stderr, err)
		stop()
		os.Exit(1)
	}
}

func run(ctx context.Context) error {
	c, err := client.FromEnv()
	if err != nil {
		return err
	}
	request := api.RunRequest{
		Spec: api.SandboxSpec{Image: "host", Network: "none", Limits: api.Limits{CPUs: 1, MemoryBytes: 512 << 20}},
		Exec: api.ExecRequest{Python: "print(1)"},
	}
	in := bufio.NewScanner(os.Stdin)
	for in.Scan() {
		began := time.Now()
		r, err := c.Run(ctx, request)
		if err != nil {
			return err
		}
		if !r.Result.OK() {
			return fmt.Errorf("exit status %d", r.Result.ExitStatus())
		}
		fmt.Println(time.Since(began).Seconds())
	}
	return in.Err()
}
