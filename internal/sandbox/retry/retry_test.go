package retry

import (
	"testing"
	"time"
)

// The waits grow from half a second to half a minute, each spread by a fifth.
func TestPace(t *testing.T) {
	p := Teardown()
	for n, want := range map[int]time.Duration{
		1: 500 * time.Millisecond, 2: time.Second, 3: 2 * time.Second, 4: 4 * time.Second, 5: 8 * time.Second, 6: 16 * time.Second,
		7: 30 * time.Second, 1000: 30 * time.Second,
	} {
		seen := map[time.Duration]bool{}
		for range 100 {
			got := p.After(n)
			seen[got] = true
			if got < want*8/10 || got > want*12/10 {
				t.Errorf("the wait after attempt %d is %s, want about %s", n, got, want)
			}
		}
		if len(seen) < 2 {
			t.Errorf("the waits after attempt %d are all the same", n)
		}
	}
}
