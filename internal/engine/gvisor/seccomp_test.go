//go:build linux

package gvisor

import (
	"math/rand/v2"
	"runtime"
	"testing"

	"gvisor.dev/gvisor/pkg/abi/linux"
	"gvisor.dev/gvisor/pkg/bpf"
	"gvisor.dev/gvisor/pkg/seccomp"
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
		sameFilter(t, name, p, want)
	}
}

// sameFilter fails when two programs judge a system call differently. They need
// not be equal: the compiler orders what may stand in any order anew each time.
func sameFilter(t *testing.T, name string, a, b precompiledseccomp.Program) {
	t.Helper()
	rules := [2]bpf.Program{compileFilter(t, name, a), compileFilter(t, name, b)}
	rnd := rand.New(rand.NewPCG(1, 2))
	buf := make([]byte, 64)
	for i := range 200_000 {
		call := linux.SeccompData{Nr: int32(i % 512), Arch: linux.AUDIT_ARCH_X86_64}
		for j := range call.Args {
			// Small numbers, flags and pointers are what rules look at.
			call.Args[j] = rnd.Uint64() >> (rnd.Uint64() % 64)
		}
		var got [2]uint32
		for j, r := range rules {
			var err error
			if got[j], err = bpf.Exec[bpf.NativeEndian](r, seccomp.DataAsBPFInput(&call, buf)); err != nil {
				t.Fatal(err)
			}
		}
		if got[0] != got[1] {
			t.Fatalf("program %s judges %+v with %#x, and the pinned gVisor with %#x: run go generate", name, call, got[0], got[1])
		}
	}
}

func compileFilter(t *testing.T, name string, p precompiledseccomp.Program) bpf.Program {
	t.Helper()
	values := precompiledseccomp.Values{}
	for v := range p.VarOffsets {
		values[v] = 7
	}
	insns, err := p.RenderInstructions(values)
	if err != nil {
		t.Fatalf("program %s: %v", name, err)
	}
	prog, err := bpf.Compile(insns, false)
	if err != nil {
		t.Fatalf("program %s: %v", name, err)
	}
	return prog
}
