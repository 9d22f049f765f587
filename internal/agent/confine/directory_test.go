//go:build linux && (amd64 || arm64)

package confine

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

const directoryEnv = "CLOCHE_TEST_CONFINED_DIRECTORY"

// triesInDirectory uses files after ToDirectory, on threads of all kinds, and says what came of it.
func triesInDirectory(dir string) {
	fd, err := unix.Open(dir, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err == nil {
		err = ToDirectory(fd, 1<<unix.CAP_CHOWN)
	}
	if err != nil {
		fmt.Println("confine:", err)
		return
	}
	say := func(what string, err error) {
		switch {
		case err == nil:
			fmt.Println(what, "done")
		case errors.Is(err, os.ErrPermission), errors.Is(err, unix.EXDEV): // EXDEV where another directory has other rights
			fmt.Println(what, "refused")
		default:
			fmt.Println(what, err)
		}
	}
	in := filepath.Join(dir, "in")
	say("make directory", os.MkdirAll(in+"/sub", 0o700))
	say("write inside", os.WriteFile(in+"/f", []byte("x"), 0o600))
	say("move inside", os.Rename(in+"/f", in+"/sub/f"))
	say("link inside", os.Link(in+"/sub/f", in+"/g"))
	say("read inside", readable(in+"/g"))
	say("remove inside", os.RemoveAll(fmt.Sprintf("/proc/self/fd/%d/in/sub", fd)))
	outside := filepath.Join(filepath.Dir(dir), "outside")
	say("read outside", readable(outside+"/f"))
	say("write outside", os.WriteFile(outside+"/new", nil, 0o600))
	say("remove outside", os.Remove(outside+"/f"))
	say("move outside", os.Rename(in+"/g", outside+"/g"))
	say("link outside", os.Link(outside+"/f", in+"/h"))
	say("execute", exec.Command("/bin/true").Run())
	done := make(chan error)
	go func() { done <- readable(outside + "/f") }()
	say("read outside on another thread", <-done)
	hdr := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var data [2]unix.CapUserData
	if err := unix.Capget(&hdr, &data[0]); err == nil {
		fmt.Println("capabilities", data[0].Permitted&^(1<<unix.CAP_CHOWN)|data[1].Permitted)
	}
}

func readable(name string) error {
	_, err := os.ReadFile(name)
	return err
}

func TestToDirectory(t *testing.T) {
	if version, _, errno := unix.Syscall(unix.SYS_LANDLOCK_CREATE_RULESET, 0, 0, unix.LANDLOCK_CREATE_RULESET_VERSION); errno != 0 || version < refers {
		t.Skip("needs a kernel with Landlock")
	}
	top := t.TempDir()
	for _, dir := range []string{"given", "outside"} {
		if err := os.Mkdir(filepath.Join(top, dir), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(filepath.Join(top, "outside/f"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = append(os.Environ(), directoryEnv+"="+filepath.Join(top, "given"))
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	if strings.Contains(string(out), unix.ENOTSUP.Error()) {
		t.Skip("needs a binary without cgo")
	}
	lines := strings.Split(string(out), "\n")
	for _, want := range []string{
		"make directory done", "write inside done", "move inside done", "link inside done", "read inside done", "remove inside done",
		"read outside refused", "write outside refused", "remove outside refused", "move outside refused", "link outside refused", "execute refused",
		"read outside on another thread refused", "capabilities 0",
	} {
		if !slices.Contains(lines, want) {
			t.Errorf("no %q in:\n%s", want, out)
		}
	}
}
