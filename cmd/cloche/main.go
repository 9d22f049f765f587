//go:build !cgo || !linux

// Command cloche runs untrusted code in sandboxes: it is the command line, the
// daemon, and each of the roles in which it starts itself again.
package main

import (
	"context"
	"os"
	"os/signal"
	"syscall"

	"github.com/cloche-dev/cloche/internal/cli"
	"github.com/cloche-dev/cloche/internal/cli/command"
)

func main() {
	playRole()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	status := cli.Main(ctx, os.Args[1:], command.Streams{In: os.Stdin, Out: os.Stdout, Err: os.Stderr}, environment())
	stop()
	os.Exit(status)
}
