//go:build linux

package guest

import (
	"testing"
	"time"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/agent"
)

// TestRestoreSignal: at a renewal a process gets the signal that it asked for, and no other process gets one.
func TestRestoreSignal(t *testing.T) {
	in := boot(t, nil)
	told := managedShell("trap 'echo restored; exit 0' USR1; echo begun; while :; do sleep 0.02; done")
	told.Spec.RestoreSignal = "USR1"
	told.Spec.Ready = &api.Readiness{Log: "begun"}
	in.must(t, told)
	other := managedShell("while :; do sleep 0.02; done")
	in.must(t, other)
	ended := managedShell(":")
	ended.Spec.RestoreSignal = "USR1"
	in.must(t, ended)
	state := func(id string) (s api.ProcessState) {
		t.Helper()
		all, err := in.Processes(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		for _, p := range all {
			if p.ExecID == id {
				s = p.State
			}
		}
		return s
	}
	for within := time.Now().Add(20 * time.Second); state(told.ExecID) != api.ProcessReady || state(ended.ExecID) != api.ProcessExited; time.Sleep(10 * time.Millisecond) {
		if time.Now().After(within) {
			t.Fatalf("the processes are %s and %s", state(told.ExecID), state(ended.ExecID))
		}
	}
	if err := in.Renew(t.Context(), agent.NewToken(), ""); err != nil {
		t.Fatal(err)
	}
	if out, _ := outputOf(t, in.Client, told.ExecID, 0); out != "begun\nrestored\n" {
		t.Errorf("it printed %q", out)
	}
	if got := state(other.ExecID); got != api.ProcessRunning {
		t.Errorf("the other process is %s", got)
	}
}
