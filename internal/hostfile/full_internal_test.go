//go:build unix

package hostfile

import "testing"

func TestFullReason(t *testing.T) {
	for name, c := range map[string]struct {
		blocks, size, inodes, free uint64
		want                       string
	}{
		"free":                {1 << 20, 4096, 1000, 500, ""},
		"no blocks":           {0, 4096, 1000, 500, "has 0 KiB free"},
		"few blocks":          {255, 4096, 1000, 500, "has 1020 KiB free"},
		"enough blocks":       {256, 4096, 1000, 500, ""},
		"no inodes":           {1 << 20, 4096, 1000, 0, "has 0 inodes free"},
		"few inodes":          {1 << 20, 4096, 1000, 15, "has 15 inodes free"},
		"enough inodes":       {1 << 20, 4096, 1000, 16, ""},
		"counts no inodes":    {1 << 20, 4096, 0, 0, ""},
		"says nothing at all": {0, 0, 0, 0, ""},
	} {
		if got := fullReason(c.blocks, c.size, c.inodes, c.free); got != c.want {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
	}
	if got := FullReason(t.TempDir() + "/none"); got != "" {
		t.Errorf("a directory that is not there: %q", got)
	}
}
