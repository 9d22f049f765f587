//go:build linux

package e2e_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/cloche-dev/cloche/test/fixture"
)

// TestResumeOnChangedHost: a sandbox of the image host is not resumed when a file of the machine that its programs have mapped is
// another, and is when the file is back. So it is with a snapshot.
func TestResumeOnChangedHost(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root: it changes a file below /usr")
	}
	dir, err := os.MkdirTemp("/usr/local/share", "cloche-test-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	lib := filepath.Join(dir, "mapped")
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(lib, []byte(strings.Repeat("A", 8192)), 0o644); err != nil {
		t.Fatal(err)
	}
	h := fixture.New(t)
	h.Must("create", "--engine", "gvisor", "--name", "box")
	program := `import mmap,time
f = open("` + lib + `", "rb"); m = mmap.mmap(f.fileno(), 0, prot=mmap.PROT_READ); print(chr(m[0]), flush=True); f.close()
while True: time.sleep(0.05); print(chr(m[4097]), flush=True)`
	h.Must("start", "--id", "maps", "--ready-log", "A", "--wait-ready", "box", "--", "python3", "-c", program)
	h.Must("snapshot", "create", "--memory", "--name", "maps", "box")
	h.Must("suspend", "box")
	later := filepath.Join(dir, "new")
	if err := os.WriteFile(later, []byte(strings.Repeat("B", 8192)), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(lib, lib+".old"); err != nil {
		t.Fatal(err)
	}
	try := func(what string) {
		t.Helper()
		for _, args := range [][]string{{"resume", "box"}, {"create", "--snapshot", "maps"}} {
			if out, status := h.Try(args...); status == 0 || !strings.Contains(out, "the file "+lib+" of this machine "+what) {
				t.Errorf("%v: status %d: %s", args, status, out)
			}
		}
	}
	try("was removed")
	if err := os.Rename(later, lib); err != nil {
		t.Fatal(err)
	}
	try("was changed or replaced")
	if out := h.Must("inspect", "box"); !strings.Contains(out, `"state": "suspended"`) {
		t.Errorf("the sandbox is %s", out)
	}
	if err := os.Rename(lib+".old", lib); err != nil {
		t.Fatal(err)
	}
	h.Must("resume", "box")
	h.Must("create", "--snapshot", "maps", "--name", "other")
	for _, box := range []string{"box", "other"} {
		lines := func() int { return strings.Count(h.Must("logs", box, "maps"), "A\n") }
		before := lines()
		if !fixture.Poll(func() bool { return lines() >= before+2 }) {
			t.Fatalf("the program in %s reads no more of what it has mapped: %s", box, h.Must("ps", box))
		}
	}
	h.Must("rm", "-f", "box", "other")
}
