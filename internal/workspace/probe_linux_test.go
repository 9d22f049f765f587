//go:build !remoteonly

package workspace_test

import (
	"os"
	"runtime"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/cloche-dev/cloche/internal/workspace"
)

// TestStageProblem: doctor learns what a run would fail of, and nothing is left of the try.
func TestStageProblem(t *testing.T) {
	parent := t.TempDir()
	if p := workspace.StageProblem(parent); p != nil && os.Geteuid() != 0 {
		t.Errorf("without root: %+v", p)
	} else if p != nil {
		t.Skipf("needs mounts: %v", p)
	}
	if os.Geteuid() == 0 {
		done := make(chan struct{})
		go func() {
			defer close(done)
			runtime.LockOSThread() // for good: the thread ends with what was taken from it
			head := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
			var caps [2]unix.CapUserData
			if err := unix.Capget(&head, &caps[0]); err != nil {
				t.Error(err)
				return
			}
			caps[0].Effective &^= 1 << unix.CAP_SYS_ADMIN
			if err := unix.Capset(&head, &caps[0]); err != nil {
				t.Error(err)
				return
			}
			p := workspace.StageProblem(parent)
			if p == nil || !strings.HasSuffix(p.What, ": operation not permitted") || !strings.Contains(p.Mend, "CAP_SYS_ADMIN") {
				t.Errorf("without CAP_SYS_ADMIN: %+v", p)
			}
		}()
		<-done
	}
	if left, err := os.ReadDir(parent); err != nil || len(left) > 0 {
		t.Errorf("left: %v, %v", left, err)
	}
}
