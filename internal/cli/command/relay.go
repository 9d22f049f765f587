package command

import (
	"context"
	"io"
	"net"
	"sync"
)

// Relay copies both ways until both directions have ended, or ctx has. Both
// connections are closed then.
func Relay(ctx context.Context, local, remote net.Conn) {
	closeBoth := sync.OnceFunc(func() {
		_ = local.Close()
		_ = remote.Close()
	})
	defer closeBoth()
	stop := context.AfterFunc(ctx, closeBoth)
	defer stop()
	var out sync.WaitGroup
	out.Go(func() {
		if _, err := io.Copy(remote, local); err != nil {
			closeBoth()
			return
		}
		closeWrite(remote)
	})
	if _, err := io.Copy(local, remote); err != nil {
		closeBoth()
	}
	closeWrite(local)
	out.Wait()
}

// closeWrite ends one direction, where a connection can.
func closeWrite(c net.Conn) {
	if w, ok := c.(interface{ CloseWrite() error }); ok {
		_ = w.CloseWrite()
	}
}
