//go:build linux

package oci_test

import (
	"os/exec"
	"strings"
	"testing"

	"github.com/cloche-dev/cloche/internal/engine/enginetest"
	"github.com/cloche-dev/cloche/internal/engine/oci"
	"github.com/cloche-dev/cloche/test/vm"
)

// TestUnderAnotherKernel proves the engine where cgroups are of version 2 alone, with each
// runtime that there is.
func TestUnderAnotherKernel(t *testing.T) {
	k := enginetest.OtherKernel{Major: 6, Minor: 1, Programs: map[string]string{}}
	for _, r := range []struct {
		runtime, test string
		names         []string
	}{
		{oci.Runc, "TestRunc", []string{"SweepAfterSuddenDeath", "Pause", "MemoryLimit", "CPULimit", "PidsLimitForAgent"}},
		{oci.Crun, "TestCrun", []string{"PausedInLaterProcess", "MemoryLimit", "PidsLimitForAgent"}},
	} {
		path, err := exec.LookPath(r.runtime)
		if err != nil {
			t.Run(r.runtime, func(t *testing.T) { t.Skipf("needs the runtime %s: it is not installed", r.runtime) })
			continue
		}
		k.Programs["/usr/bin/"+r.runtime] = path
		b := enginetest.Batch{Name: r.runtime, Pattern: "^" + r.test + "$/^(" + strings.Join(r.names, "|") + ")$"}
		for _, name := range r.names {
			b.Must = append(b.Must, r.test+"/"+name)
		}
		k.Batches = append(k.Batches, b)
	}
	if len(k.Batches) > 0 {
		k.Under(t)
	}
}

// TestUnderOlderKernel: before Linux 6.6 a filesystem in memory keeps no attributes that a
// user may set, and the root is still one.
func TestUnderOlderKernel(t *testing.T) {
	path, err := exec.LookPath(oci.Runc)
	if err != nil {
		t.Skip("needs the runtime runc: it is not installed")
	}
	enginetest.OtherKernel{
		Env: vm.EnvOlder, Major: 6, Minor: 1, Programs: map[string]string{"/usr/bin/runc": path},
		Batches: []enginetest.Batch{{Name: "runc", Pattern: "^TestRunc$/^Inside$", Must: []string{"TestRunc/Inside"}}},
	}.Under(t)
}
