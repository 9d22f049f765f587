//go:build linux

package identity

import (
	"testing"
)

// TestCapabilitiesOfPrograms: the two sets, by their numbers. CAP_SETFCAP is in the set of
// the sentry alone, whose kernel gives no file capabilities.
func TestCapabilitiesOfPrograms(t *testing.T) {
	for shared, want := range map[bool]uint64{false: 0xa00405fb, true: 0x200405eb} {
		if got := (Identity{Shared: shared}).Caps(); got != want {
			t.Errorf("on a kernel of the host's, %v: %#x, want %#x", shared, got, want)
		}
	}
}
