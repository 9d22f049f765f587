package inner

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strconv"
	"strings"
	"sync"

	"github.com/hashicorp/yamux"
	"golang.org/x/sys/unix"
)

// stdio is standard input and output as one stream.
type stdio struct{}

func (stdio) Read(b []byte) (int, error)  { return os.Stdin.Read(b) }
func (stdio) Write(b []byte) (int, error) { return os.Stdout.Write(b) }
func (stdio) Close() error                { return errors.Join(os.Stdin.Close(), os.Stdout.Close()) }

// dial joins streams to the agent's address until the host hangs up.
func dial(args []string) error {
	if len(args) < 1 {
		return errors.New("dial: no address")
	}
	network, address := "unix", args[0]
	if !strings.HasPrefix(address, "/") {
		if _, err := strconv.ParseUint(address, 10, 16); err != nil {
			return fmt.Errorf("dial: %w", err)
		}
		network, address = "tcp", net.JoinHostPort("127.0.0.1", address)
	}
	// The sandbox's token goes through this memory, and nothing that is done here
	// takes a capability.
	if err := unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0); err != nil {
		return fmt.Errorf("become undumpable: %w", err)
	}
	mux, err := yamux.Server(stdio{}, MuxConfig())
	if err != nil {
		return err
	}
	for {
		stream, err := mux.AcceptStream()
		if err != nil {
			return nil // the host hung up
		}
		go join(stream, network, address) // ends with this process at the latest
	}
}

// join serves one stream.
func join(stream *yamux.Stream, network, address string) {
	defer stream.Close()
	conn, err := net.Dial(network, address)
	if err != nil {
		return
	}
	if _, err := stream.Write([]byte{Connected}); err != nil {
		conn.Close()
		return
	}
	var wg sync.WaitGroup
	wg.Go(func() {
		defer conn.Close()
		_, _ = io.Copy(conn, stream)
	})
	_, _ = io.Copy(stream, conn)
	stream.Close()
	conn.Close()
	wg.Wait()
}
