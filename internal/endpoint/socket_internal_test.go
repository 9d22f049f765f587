//go:build linux

package endpoint

import (
	"net"
	"path/filepath"
	"testing"
)

// A socket at whose other end this process listens is its own; what is no socket of a file
// is an error.
func TestIsOwnSocket(t *testing.T) {
	for network, address := range map[string]string{"unix": filepath.Join(t.TempDir(), "s"), "tcp": "127.0.0.1:0"} {
		ln, err := net.Listen(network, address)
		if err != nil {
			t.Fatal(err)
		}
		defer ln.Close()
		conn, err := net.Dial(network, ln.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		if own, err := isOwnSocket(conn); own != (network == "unix") || (err == nil) != own {
			t.Errorf("%s: %v, %v", network, own, err)
		}
	}
}
