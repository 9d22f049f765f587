// Package embed carries the agent that the build put into bin.
package embed

import (
	"embed"
	"runtime"
)

//go:embed all:bin
var bin embed.FS

// Binary returns the agent for this architecture; false when the build did not
// make one. The caller must not change it.
func Binary() ([]byte, bool) {
	data, err := bin.ReadFile("bin/cloche-agent-linux-" + runtime.GOARCH)
	return data, err == nil && len(data) > 0
}
