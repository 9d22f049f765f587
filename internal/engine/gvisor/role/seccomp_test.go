//go:build linux

package role

import (
	"math/rand/v2"
	"runtime"
	"slices"
	"testing"

	"golang.org/x/sys/unix"
	"gvisor.dev/gvisor/pkg/abi/linux"
	"gvisor.dev/gvisor/pkg/bpf"
	"gvisor.dev/gvisor/pkg/seccomp"
	"gvisor.dev/gvisor/pkg/seccomp/precompiledseccomp"
	"gvisor.dev/gvisor/pkg/sentry/platform"
	sentryfilter "gvisor.dev/gvisor/runsc/boot/filter/config"
	goferfilter "gvisor.dev/gvisor/runsc/fsgofer/filter/config"

	_ "gvisor.dev/gvisor/pkg/sentry/platform/systrap"
)

// TestSeccompTableIsOfThisVersion compares the programs of the table with ones
// that are compiled now. A table that is out of date would only cost time, and
// no other test would notice.
func TestSeccompTableIsOfThisVersion(t *testing.T) {
	if runtime.GOARCH != "amd64" {
		t.Skip("needs amd64: other architectures have no table")
	}
	systrap, err := platform.Lookup("systrap")
	if err != nil {
		t.Fatal(err)
	}
	// What the engine asks for: no host network, no host file system, and a gofer that
	// is needed or not.
	sentry := map[string]sentryfilter.Options{}
	for _, info := range systrap.PrecompiledSeccompInfo() {
		o := sentryfilter.Options{Platform: info}
		sentry[o.ConfigKey()] = o
	}
	gofer := map[string]goferfilter.Options{}
	for _, needed := range []bool{false, true} {
		o := goferfilter.Options{LisafsNeeded: needed}
		gofer[o.ConfigKey()] = o
	}
	table := map[string]precompiledseccomp.Program{}
	sentryPrograms(table)
	if len(table) != len(sentry) {
		t.Errorf("the table has %d programs of the sentry, and %d are used", len(table), len(sentry))
	}
	for name, o := range sentry {
		rules, deny := sentryfilter.Rules(o)
		sameFilter(t, name, table[name], o.Vars(), filterOf(rules, deny, sentryfilter.SeccompOptions(o)))
	}
	clear(table)
	goferPrograms(table)
	if len(table) != len(gofer) {
		t.Errorf("the table has %d programs of the gofer, and %d are used", len(table), len(gofer))
	}
	for name, o := range gofer {
		rules, deny := goferfilter.Rules(o)
		sameFilter(t, name, table[name], o.Vars(), filterOf(rules, deny, seccomp.ProgramOptions{}))
	}
}

// filterOf is what gVisor compiles where it has no table.
func filterOf(rules, deny seccomp.SyscallRules, o seccomp.ProgramOptions) *seccomp.Program {
	return &seccomp.Program{
		RuleSets: []seccomp.RuleSet{{Rules: deny.Copy()}, {Rules: rules.Copy(), Action: seccomp.Allow}},
		Options:  o,
	}
}

// sameFilter fails when two programs judge a system call differently. They need
// not be equal: the compiler orders what may stand in any order anew each time.
func sameFilter(t *testing.T, name string, of precompiledseccomp.Program, vars precompiledseccomp.Values, now *seccomp.Program) {
	t.Helper()
	if of.Name == "" {
		t.Errorf("the table has no program %s: run go generate", name)
		return
	}
	insns, err := of.RenderInstructions(vars)
	if err != nil {
		t.Fatalf("program %s: %v", name, err)
	}
	want, _, err := now.Build()
	if err != nil {
		t.Fatalf("program %s: %v", name, err)
	}
	rules := [2]bpf.Program{compileFilter(t, name, insns), compileFilter(t, name, want)}
	// The numbers that the programs compare with are the ones that make a difference.
	var known []uint64
	for _, in := range slices.Concat(insns, want) {
		known = append(known, uint64(in.K))
	}
	slices.Sort(known)
	known = slices.Compact(known)
	rnd := rand.New(rand.NewPCG(1, 2))
	buf := make([]byte, 64)
	for i := range 2_000_000 {
		call := linux.SeccompData{Nr: int32(i % 512), Arch: linux.AUDIT_ARCH_X86_64}
		if call.Nr == unix.SYS_RT_TGSIGQUEUEINFO {
			// Its rule has the number of the process that compiled it, and no variable for
			// that. Nothing of the pinned version makes the call.
			continue
		}
		for j := range call.Args {
			// Small numbers, flags and pointers are what rules look at.
			if call.Args[j] = rnd.Uint64() >> (rnd.Uint64() % 64); rnd.IntN(8) > 0 {
				call.Args[j] = known[rnd.IntN(len(known))]
			}
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

func compileFilter(t *testing.T, name string, insns []bpf.Instruction) bpf.Program {
	t.Helper()
	p, err := bpf.Compile(insns, false)
	if err != nil {
		t.Fatalf("program %s: %v", name, err)
	}
	return p
}
