//go:build linux

package pidfd_test

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/cloche-dev/cloche/internal/engine/pidfd"
)

// firstVar makes the test's program be spawnFromFirst.
const firstVar = "HOSTPROC_TEST_FIRST"

// The main goroutine has the first thread, and keeps it where it is locked this early.
func init() {
	if os.Getenv(firstVar) != "" {
		runtime.LockOSThread()
	}
}

// spawnFromFirst begins a spawner on the first thread, and says where it runs.
func spawnFromFirst() int {
	s := pidfd.NewSpawner()
	s.Run()
	runtime.UnlockOSThread()
	defer s.Close()
	for range 100 {
		err := s.Do(context.Background(), func() error {
			if tid := unix.Gettid(); tid == os.Getpid() {
				return fmt.Errorf("it runs on the first thread, %d", tid)
			}
			return nil
		})
		if err != nil {
			fmt.Println(err)
			return 1
		}
	}
	return 0
}

// TestSpawnerLeavesTheFirstThreadAlone: in the group of a sandbox, that one would show
// the whole process there, to a daemon that looks for a place for its groups.
func TestSpawnerLeavesTheFirstThreadAlone(t *testing.T) {
	cmd := exec.CommandContext(t.Context(), "/proc/self/exe")
	cmd.Env = []string{firstVar + "=1"}
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
}
