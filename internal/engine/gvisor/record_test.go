//go:build linux

package gvisor

import "testing"

func TestOlderThan(t *testing.T) {
	for release, want := range map[string]bool{
		"5.6.19": true, "4.19.0-26-amd64": true, "5.7": false, "5.10.0": false, "6.18.44-x": false, "10.0": false, "odd": false,
	} {
		if got := olderThan(release, "5.7"); got != want {
			t.Errorf("%s older than 5.7: %v", release, got)
		}
	}
}
