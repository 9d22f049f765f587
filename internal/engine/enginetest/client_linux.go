package enginetest

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"time"

	"github.com/cloche-dev/cloche/internal/engine"
)

// Output is what became of a program that was run in a sandbox.
type Output struct {
	Output []byte `json:"output"`
	Code   int    `json:"code"`
	Error  string `json:"error,omitempty"`
}

// Exec runs argv in an instance of the suite and waits for it.
func Exec(ctx context.Context, i engine.Instance, argv ...string) (Output, error) {
	return execRequest(ctx, i, map[string]any{"argv": argv})
}

func execRequest(ctx context.Context, i engine.Instance, req map[string]any) (Output, error) {
	conn, err := i.Dial(ctx)
	if err != nil {
		return Output{}, err
	}
	defer conn.Close()
	stop := context.AfterFunc(ctx, func() { conn.SetDeadline(time.Unix(1, 0)) })
	defer stop()
	if err := json.NewEncoder(conn).Encode(req); err != nil {
		return Output{}, err
	}
	var o Output
	if err := json.NewDecoder(conn).Decode(&o); err != nil {
		return Output{}, fmt.Errorf("no answer: %w", err)
	}
	return o, nil
}

// Echo sends msg through a new stream and back.
func Echo(ctx context.Context, i engine.Instance, msg string) error {
	conn, err := i.Dial(ctx)
	if err != nil {
		return err
	}
	defer conn.Close()
	stop := context.AfterFunc(ctx, func() { conn.SetDeadline(time.Unix(1, 0)) })
	defer stop()
	if _, err := io.WriteString(conn, `{"echo":true}`+"\n"+msg+"\n"); err != nil {
		return err
	}
	line, err := bufio.NewReader(conn).ReadString('\n')
	if err != nil {
		return err
	}
	if line != msg+"\n" {
		return fmt.Errorf("sent %q, came back %q", msg, line)
	}
	return nil
}
