//go:build cloche_embed

package embed

import (
	"embed"
	"runtime"
)

//go:embed all:bin
var bin embed.FS

// packed is the executable, compressed with zstd.
func packed() []byte {
	data, _ := bin.ReadFile("bin/cloche-sandbox-linux-" + runtime.GOARCH + ".zst")
	return data
}
