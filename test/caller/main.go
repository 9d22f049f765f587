// Command caller asks the endpoints of the sandbox that it runs in: what tests and
// benchmarks put into one, be there nothing else in its image. On the host it is the
// service that they lead to.
//
// It prints what it found on one line of words, NAME=VALUE, times in milliseconds,
// and ends with status 1 where something is not as it should be.
package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/signal"
	"strconv"
	"syscall"
	"time"
)

const usage = `usage: caller VERB ARGUMENTS
  posts N URL            N requests after another, on one connection
  sse URL                a stream of events, to its end
  up BYTES URL           an upload in chunks, with its sum in a trailer
  down BYTES URL         a download of as many bytes, whose sum is in a trailer
  socket URL             a WebSocket that echoes, in messages of many sizes
  half ADDRESS           raw bytes to their end, and what comes after it
  hung N URL-HUNG URL    N requests that get no answer, and one that does
  others PORT            every address that must not answer
  open N URL             N requests that get no answer, until it is ended
  turns N URL            a model, a tool and a stop check, N times
  serve MS               the target of all that, whose model takes so long`

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, os.Args[1:])
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "caller:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string) error {
	verb, rest := "", []string(nil)
	if len(args) > 1 {
		verb, rest = args[0], args[1:]
	}
	c := &caller{client: &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 256, DisableCompression: true}}, out: os.Stdout}
	switch {
	case verb == "sse" && len(rest) == 1:
		return c.sse(ctx, rest[0])
	case verb == "socket" && len(rest) == 1:
		return c.socket(ctx, rest[0])
	case verb == "half" && len(rest) == 1:
		return c.half(ctx, rest[0])
	}
	// The rest begin with a number.
	if len(rest) == 0 {
		return errors.New(usage)
	}
	n, err := strconv.ParseInt(rest[0], 10, 64)
	if err != nil || n < 0 {
		return fmt.Errorf("%q is no number\n%s", rest[0], usage)
	}
	switch {
	case verb == "serve" && len(rest) == 1:
		return c.serve(ctx, time.Duration(n)*time.Millisecond)
	case verb == "others" && len(rest) == 1:
		return c.others(ctx, n)
	case verb == "hung" && len(rest) == 3:
		return c.hung(ctx, int(n), rest[1], rest[2])
	case len(rest) != 2:
		return errors.New(usage)
	}
	switch verb {
	case "posts":
		return c.posts(ctx, int(n), rest[1])
	case "up":
		return c.up(ctx, n, rest[1])
	case "down":
		return c.down(ctx, n, rest[1])
	case "open":
		return c.open(ctx, int(n), rest[1])
	case "turns":
		return c.turns(ctx, int(n), rest[1])
	}
	return errors.New(usage)
}
