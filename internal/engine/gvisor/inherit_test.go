//go:build linux

package gvisor_test

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/cloche-dev/cloche/internal/engine/enginetest"
)

// TestInheritsNothing: a sandbox inherits no open file of the daemon,
// not even one that outlives execve, and takes no number that the sentry wants.
func TestInheritsNothing(t *testing.T) {
	usable(t)
	im := enginetest.BuildImages(t, t.TempDir())
	secret, err := os.Create(filepath.Join(t.TempDir(), "secret-of-the-daemon"))
	if err != nil {
		t.Fatal(err)
	}
	defer secret.Close()
	// The sentry moves its standard streams to 253 and up.
	for fd := 250; fd < 260; fd++ {
		if _, err := unix.FcntlInt(uintptr(fd), unix.F_GETFD, 0); err == nil {
			continue
		}
		if err := unix.Dup3(int(secret.Fd()), fd, 0); err != nil {
			t.Fatal(err)
		}
		defer unix.Close(fd)
	}
	i := create(t, newEngine(t, t.TempDir()), im, nil)
	var state map[string]json.RawMessage
	if err := json.Unmarshal(i.State(), &state); err != nil {
		t.Fatal(err)
	}
	seen := 0
	for _, role := range []string{"sentry", "gofer"} {
		var p struct {
			PID int `json:"pid"`
		}
		if err := json.Unmarshal(state[role], &p); err != nil || p.PID == 0 {
			continue
		}
		open, err := filepath.Glob(fmt.Sprintf("/proc/%d/fd/*", p.PID))
		if err != nil || len(open) == 0 {
			t.Fatalf("%s: %v, %v", role, open, err)
		}
		for _, fd := range open {
			seen++
			if to, _ := os.Readlink(fd); strings.Contains(to, filepath.Base(secret.Name())) {
				t.Errorf("the %s has %s as %s", role, to, filepath.Base(fd))
			}
		}
	}
	if seen == 0 {
		t.Error("no descriptor was looked at")
	}
	if err := i.Close(t.Context()); err != nil {
		t.Error(err)
	}
}
