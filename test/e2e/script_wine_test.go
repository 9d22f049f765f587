//go:build linux

package e2e_test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/cloche-dev/cloche/test/fixture"
)

// envWine names a directory with a Debian root filesystem in which Wine is, new enough for
// the calls that Go makes: the Wine of Debian 13.
const envWine = "CLOCHE_TEST_WINE"

// wine makes a program that runs another one, of Windows, in Wine. Files are those of this
// machine, and so are processes and the network.
func wine(t *testing.T, dir, exe string) string {
	t.Helper()
	tree := os.Getenv(envWine)
	if tree == "" {
		t.Skip("needs " + envWine + ": a root filesystem of Debian 13 with the package wine64")
	}
	if _, err := exec.LookPath("bwrap"); err != nil {
		t.Skip("needs bwrap (package bubblewrap), to run Wine in a root of its own")
	}
	// Wine shows the mode of a file as its access list, and only Cloche's user has
	// access to Cloche's files.
	script := fmt.Sprintf(`#!/bin/sh
umask 077
exec bwrap --die-with-parent --bind '%[1]s' / --proc /proc --dev /dev --ro-bind /sys /sys --bind '%[2]s' '%[2]s' --bind '%[3]s' '%[3]s' \
  --setenv WINEPREFIX '%[3]s/prefix' --setenv WINEDEBUG -all --setenv WINESERVER /usr/lib/wine/wineserver64 --setenv HOME '%[3]s' \
  --unsetenv DISPLAY --unsetenv TMPDIR --chdir "$PWD" -- /usr/lib/wine/%[4]s "$@"
`, tree, os.TempDir(), dir, "%s")
	at := func(name, argv string) string {
		p := filepath.Join(dir, name)
		if err := os.WriteFile(p, fmt.Appendf(nil, script, argv), 0o755); err != nil {
			t.Fatal(err)
		}
		return p
	}
	// What it says of its end is about programs of 32 bits, which it has none for.
	out, err := exec.CommandContext(t.Context(), at("boot", "wine64"), "wineboot", "-i").CombinedOutput()
	if _, serr := os.Stat(filepath.Join(dir, "prefix", "drive_c", "windows", "system32", "kernel32.dll")); serr != nil {
		t.Fatalf("make a Windows: %v: %v\n%s", serr, err, out)
	}
	server := at("wineserver", "wineserver64")
	t.Cleanup(func() { _ = exec.Command(server, "-k").Run() })
	return at("cloche", "wine64 '"+exe+"'")
}

// TestWindows drives the daemon of Windows as Wine runs it: with a Docker daemon of another
// machine, over TCP, for Wine has no unix sockets.
func TestWindows(t *testing.T) {
	if testing.Short() {
		t.Skip("needs a run without -short: it builds another binary and starts a Docker daemon")
	}
	if ok, err := condition("dockerd"); err != nil || !ok {
		t.Skip("needs dockerd (package docker.io) and root, to start a Docker daemon of its own")
	}
	dir, err := os.MkdirTemp("", "cloche-windows-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	exe := filepath.Join(dir, "cloche.exe")
	bin := wine(t, dir, exe)
	fixture.Binary(t) // and so the agent is there
	cmd := exec.CommandContext(t.Context(), "go", "build", "-o", exe, "./cmd/cloche")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOOS=windows")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("build: %v\n%s", err, out)
	}
	runFiles(t, bin, []string{"test/e2e/testdata/windows/docker.txtar"}, scriptTime)
}
