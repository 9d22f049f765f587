//go:build linux

package gvisor

import (
	"errors"
	"strings"
	"testing"

	"gvisor.dev/gvisor/pkg/urpc"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/engine"
)

// TestUnrestored: a processor that lacks something is named, and only that refuses the memory for good.
func TestUnrestored(t *testing.T) {
	processor := urpc.RemoteError{Message: "loading: incompatible FeatureSet: missing features: map[avx512f:true]"}
	err := unrestored("sb-1", processor)
	if api.CodeOf(err) != api.CodeUnsupported || !errors.Is(err, engine.ErrMemoryRefused) || !strings.Contains(err.Error(), "avx512f") {
		t.Errorf("got %v", err)
	}
	for _, cause := range []error{nil, errors.New("other"), urpc.RemoteError{Message: "no such file"}} {
		if err := unrestored("sb-1", cause); !errors.Is(err, cause) || errors.Is(err, engine.ErrMemoryRefused) {
			t.Errorf("of %v: %v", cause, err)
		}
	}
}
