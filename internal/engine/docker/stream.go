package docker

import (
	"encoding/binary"
	"fmt"
	"io"
)

// frames reads the output of a command from a stream in which the daemon puts
// pieces of several: each begins with the number of its output and its length.
type frames struct {
	r    io.Reader
	left uint32
}

// The outputs of a command.
const (
	outputIn = iota
	outputOut
	outputErr
	outputDaemon // the daemon's own words about an error
)

// Read implements io.Reader. Both outputs are one: nothing that is started here
// tells them apart.
func (f *frames) Read(b []byte) (int, error) {
	for f.left == 0 {
		var head [8]byte
		if _, err := io.ReadFull(f.r, head[:]); err != nil {
			return 0, err
		}
		if head[0] > outputDaemon {
			return 0, fmt.Errorf("the daemon's stream has a piece of the kind %d", head[0])
		}
		f.left = binary.BigEndian.Uint32(head[4:])
	}
	if uint32(len(b)) > f.left {
		b = b[:f.left]
	}
	n, err := f.r.Read(b)
	f.left -= uint32(n)
	return n, err
}
