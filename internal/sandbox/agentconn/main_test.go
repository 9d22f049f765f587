//go:build linux

package agentconn

import (
	"os"
	"testing"

	"github.com/cloche-dev/cloche/internal/engine/fake"
)

func TestMain(m *testing.M) {
	fake.Dispatch()
	os.Exit(m.Run())
}
