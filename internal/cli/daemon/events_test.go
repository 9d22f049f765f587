package daemon

import (
	"testing"

	"github.com/cloche-dev/cloche/api"
)

// TestEveryKindCanBeAskedFor holds the list against the vocabulary.
func TestEveryKindCanBeAskedFor(t *testing.T) {
	for _, k := range []api.EventKind{api.EventCreated, api.EventOOM, api.EventRefused, api.EventProcessFailed, api.EventProcessNotReady} {
		if got, err := parseKinds([]string{string(k)}); err != nil || len(got) != 1 || got[0] != k {
			t.Errorf("%s: %v, %v", k, got, err)
		}
	}
	if got, _ := parseKinds([]string{"process", "process.exited", "sandbox"}); len(got) != 20 {
		t.Errorf("process and sandbox are %d kinds, want 20", len(got))
	}
}
