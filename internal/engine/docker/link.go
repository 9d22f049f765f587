package docker

import (
	"context"
	"fmt"
	"io"
	"net"
	"strconv"

	"github.com/moby/moby/client"

	"github.com/cloche-dev/cloche/internal/engine/inner"
)

// openLine starts the exec that all connections to the agent share.
func (i *instance) openLine(ctx context.Context) (io.ReadWriteCloser, error) {
	made, err := i.d.ExecCreate(ctx, i.rec.Container, client.ExecCreateOptions{
		User: "0:0", AttachStdin: true, AttachStdout: true, WorkingDir: "/",
		Cmd: []string{i.rec.Inner, inner.Dial, strconv.Itoa(i.rec.Port)},
	})
	if err != nil {
		return nil, fmt.Errorf("make exec: %w", err)
	}
	att, err := i.d.ExecAttach(ctx, made.ID, client.ExecAttachOptions{})
	if err != nil {
		return nil, fmt.Errorf("start exec: %w", err)
	}
	return &attached{Conn: att.Conn, out: frames{r: att.Reader}}, nil
}

// attached is the connection of an exec, whose output is in frames.
type attached struct {
	net.Conn
	out frames
}

// Read implements net.Conn.
func (a *attached) Read(b []byte) (int, error) { return a.out.Read(b) }
