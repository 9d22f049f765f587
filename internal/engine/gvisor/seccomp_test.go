//go:build linux

package gvisor

import (
	"runtime"
	"testing"

	"gvisor.dev/gvisor/pkg/seccomp/precompiledseccomp"
	sentryfilter "gvisor.dev/gvisor/runsc/boot/filter/config"
	goferfilter "gvisor.dev/gvisor/runsc/fsgofer/filter/config"

	_ "gvisor.dev/gvisor/pkg/sentry/platform/systrap"
)

// TestSeccompTableIsOfThisVersion compares the programs of the table with ones
// that are compiled now. A table that is out of date would only cost time, and
// nobody would notice.
func TestSeccompTableIsOfThisVersion(t *testing.T) {
	if runtime.GOARCH != "amd64" {
		t.Skip("needs amd64: other architectures have no table")
	}
	if testing.Short() {
		t.Skip("needs a minute: compiles every program of gVisor")
	}
	now := map[string]precompiledseccomp.Program{}
	sentry, err := sentryfilter.PrecompiledPrograms()
	if err != nil {
		t.Fatal(err)
	}
	gofer, err := goferfilter.PrecompiledPrograms()
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range append(sentry, gofer...) {
		now[p.Name] = p
	}
	table := map[string]precompiledseccomp.Program{}
	sentryPrograms(table)
	goferPrograms(table)
	if len(table) == 0 {
		t.Fatal("the table is empty")
	}
	for name, p := range table {
		want, ok := now[name]
		if !ok {
			t.Errorf("gVisor has no program %s: run go generate", name)
			continue
		}
		if len(p.Bytecode32) != len(want.Bytecode32) {
			t.Errorf("program %s has another length: run go generate", name)
			continue
		}
		for i := range p.Bytecode32 {
			if p.Bytecode32[i] != want.Bytecode32[i] {
				t.Errorf("program %s differs at %d: run go generate", name, i)
				break
			}
		}
	}
}
