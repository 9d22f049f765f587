//go:build linux

package hostrootfs

import "testing"

// TestControllers: how many groups the host has is not told.
func TestControllers(t *testing.T) {
	const host = "#subsys_name\thierarchy\tnum_cgroups\tenabled\ncpu\t3\t214\t1\nmemory\t0\t17\t0\nstrange line\n"
	const want = "#subsys_name\thierarchy\tnum_cgroups\tenabled\ncpu\t3\t1\t1\nmemory\t0\t1\t0\n"
	if got := controllers(host); got != want {
		t.Errorf("%q, want %q", got, want)
	}
	if got := controllers(""); got != "" {
		t.Errorf("without the file: %q", got)
	}
}
