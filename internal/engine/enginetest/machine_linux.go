package enginetest

import (
	"cmp"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/cloche-dev/cloche/test/longtest"
	"github.com/cloche-dev/cloche/test/vm"
	"github.com/cloche-dev/cloche/test/vm/plan"
)

// OtherKernel is a machine whose cgroups are of version 2 alone, in which tests of the
// calling package are run.
type OtherKernel struct {
	// Env is the variable of package vm that names the kernel; empty is EnvKernel.
	Env string
	// Major and Minor are the oldest version of Linux that the engine works on.
	Major, Minor int
	// Programs are what the engine needs: path inside to path here.
	Programs map[string]string
	// Batches are what is run, one after the other.
	Batches []Batch
}

// Batch is a run of the calling test's program.
type Batch struct {
	// Name is what it is called in reports; "root" is the administrator of a machine.
	Name string
	// Pattern is what -test.run is given.
	Pattern string
	// Env are more variables.
	Env []string
	// Place and Without are those of plan.Command.
	Place   plan.Place
	Without []string
	// Must are the tests that must not be skipped.
	Must []string
}

// Under runs the tests, each of which becomes one below t. The calling test needs root.
func (k OtherKernel) Under(t *testing.T) {
	t.Helper()
	env := cmp.Or(k.Env, vm.EnvKernel)
	if why := vm.Missing(env, k.Major, k.Minor); why != "" {
		t.Skip(why)
	}
	if os.Geteuid() != 0 {
		t.Skip("needs root: to make the machine's disk")
	}
	longtest.Skip(t, "it starts a machine")
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	program := filepath.Join(t.TempDir(), "inside")
	BuildProgram(t, program, "internal/engine/enginetest/inside")
	m := vm.Machine{
		Kernel:   os.Getenv(env),
		Modules:  []string{"loop", "overlay", "erofs", "tun"},
		Files:    map[string]string{"/test": self, "/usr/bin/inside": program},
		Programs: k.Programs,
		DiskMB:   1024, MemoryMB: 1536,
	}
	for _, r := range k.Batches {
		m.Commands = append(m.Commands, plan.Command{
			Name: r.Name, Place: r.Place, Without: r.Without,
			Argv: []string{"/test", "-test.v", "-test.timeout=8m", "-test.run=" + r.Pattern},
			Env:  append([]string{"PATH=/usr/sbin:/usr/bin", "HOME=/tmp", "TMPDIR=/tmp", programEnv + "=/usr/bin/inside", slowEnv + "=1"}, r.Env...),
		})
	}
	passed := vm.Test(t, m)
	for _, r := range k.Batches {
		for _, name := range r.Must {
			if !slices.Contains(passed, r.Name+"/"+name) {
				t.Errorf("%s/%s did not run, or did not pass", r.Name, name)
			}
		}
	}
}
