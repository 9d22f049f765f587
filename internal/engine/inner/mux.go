package inner

import (
	"io"
	"time"

	"github.com/hashicorp/yamux"
)

// window is how many bytes of one stream may be on their way.
const window = 4 << 20

// MuxConfig is for both ends of the shared stream. A container may be paused for any
// time, so nothing in it ends by time.
func MuxConfig() *yamux.Config {
	c := yamux.DefaultConfig()
	c.EnableKeepAlive = false
	c.ConnectionWriteTimeout = 365 * 24 * time.Hour
	c.StreamOpenTimeout = 0
	c.StreamCloseTimeout = 30 * time.Second
	c.MaxStreamWindowSize = window
	c.LogOutput = io.Discard
	return c
}
