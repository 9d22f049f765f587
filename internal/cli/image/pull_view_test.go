package image

import (
	"bytes"
	"strings"
	"testing"

	"github.com/cloche-dev/cloche/api"
)

// TestPullView: a file gets a line for each thing that is done, and nothing
// twice; a terminal is drawn again.
func TestPullView(t *testing.T) {
	const mib = 1 << 20
	told := []api.PullProgress{
		{Phase: api.PullResolve}, {Phase: api.PullResolve},
		{Phase: api.PullDownload, Layer: someDigest, Bytes: mib / 2, TotalBytes: mib},
		{Phase: api.PullDownload, Layer: someDigest, Bytes: mib, TotalBytes: mib},
		{Phase: api.PullDownload, Layer: someDigest, Bytes: mib, TotalBytes: mib},
		{Phase: api.PullUnpack, Layer: someDigest, Bytes: mib, TotalBytes: mib},
		{Phase: api.PullUnpack, Layer: "\x1b[31mevil", Bytes: 1, TotalBytes: mib},
		{Phase: api.PullDone},
	}
	var plain, screen bytes.Buffer
	for _, v := range []*pullView{newPullView(&plain, false), newPullView(&screen, true)} {
		for _, p := range told {
			p.Image = "tool:1"
			v.Tell(p)
		}
		v.Stop()
	}
	want := "tool:1: asking the registry\ntool:1: layer 0123456789ab fetched, 1 MiB\ntool:1: layer 0123456789ab unpacked\ntool:1: done\n"
	if plain.String() != want {
		t.Errorf("a file gets %q, want %q", plain.String(), want)
	}
	drawn := screen.String()
	for _, want := range []string{"fetching 512 KiB of 1 MiB", "fetched, 1 MiB", "unpacked, 1 MiB", "\x1b[2A\r\x1b[J", "\x1b[3A\r\x1b[J"} {
		if !strings.Contains(drawn, want) {
			t.Errorf("a terminal does not get %q: %q", want, drawn)
		}
	}
	if strings.Contains(drawn, "\x1b[31m") || !strings.HasSuffix(drawn, "\x1b[3A\r\x1b[J") {
		t.Errorf("a terminal gets %q", drawn)
	}
}

const someDigest = "sha256:0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"
