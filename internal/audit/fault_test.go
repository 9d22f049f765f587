//go:build linux

package audit_test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/audit"
	"github.com/cloche-dev/cloche/internal/audit/chain"
)

// TestKilledAtEachStep: whatever step a writer dies at, the next one goes on, the
// chain holds, and what was acknowledged is there unless a rule removed it.
func TestKilledAtEachStep(t *testing.T) {
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	for _, step := range []string{"write", "head", "sync", "rename", "create", "removed", "unlink", "unlinked"} {
		for _, n := range []string{"1", "3"} {
			t.Run(step+n, func(t *testing.T) {
				home := t.TempDir()
				cmd := exec.CommandContext(t.Context(), self)
				cmd.Env = []string{writerEnv + "=" + strings.Join([]string{home, "d", n, step}, "\n")}
				out, err := cmd.Output()
				if cmd.ProcessState.Sys().(syscall.WaitStatus).Signal() != syscall.SIGKILL {
					t.Fatalf("it did not die as it should: %v: %s", err, out)
				}
				// The log is whole, except for files that an interrupted rotation has not made yet.
				if report, err := chain.VerifyHome(t.Context(), home, api.AuditVerifyOptions{}); err != nil || !report.OK && step != "create" {
					t.Errorf("before the next start: %+v, %v", report, err)
				}
				log := openWith(t, audit.Options{Home: home, SegmentBytes: 3 << 10, KeepBytes: 6 << 10})
				record(t, log, event("after"))
				report := verify(t, home)
				events := read(t, home)
				if last := events[len(events)-1].RequestID; last != "after" {
					t.Errorf("the last record is %s", last)
				}
				acked := strings.Count(string(out), "\n")
				if acked > 0 {
					want := fmt.Sprint("d", acked-1)
					if !slices.ContainsFunc(events, func(r api.AuditRecord) bool { return r.RequestID == want }) {
						t.Errorf("record %s is gone: %+v", want, report)
					}
				}
			})
		}
	}
}

// TestFullDiskLeavesNoHalfLine runs where the file may not grow past a bound.
func TestFullDiskLeavesNoHalfLine(t *testing.T) {
	home := t.TempDir()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	record(t, open(t, home), event("before"))
	// 4 KiB is the file size limit; the writer's lines outgrow it.
	cmd := exec.CommandContext(t.Context(), "/bin/sh", "-c", `trap "" XFSZ; ulimit -f 8; exec "$0"`, self)
	cmd.Env = []string{writerEnv + "=" + home + "\nw\n500"}
	if out, err := cmd.CombinedOutput(); err == nil || !strings.Contains(string(out), "audit log cannot be written") {
		t.Fatalf("the writer did not meet the limit: %v: %s", err, out)
	}
	record(t, open(t, home), event("after"))
	events := read(t, home)
	if len(events) < 3 || events[len(events)-1].RequestID != "after" {
		t.Errorf("%d events", len(events))
	}
	// The count of what was not written outlived its process.
	if r := verify(t, home); len(r.Notes) != 1 || !strings.HasPrefix(r.Notes[0].Message, "1 records could not be written") {
		t.Errorf("notes %+v", r.Notes)
	}
}

// TestFullDisk fills a small filesystem, in both configurations.
func TestFullDisk(t *testing.T) {
	for _, degrade := range []bool{false, true} {
		t.Run(fmt.Sprint("degrade=", degrade), func(t *testing.T) {
			home := t.TempDir()
			if err := unix.Mount("none", home, "tmpfs", 0, "size=64k"); err != nil {
				t.Skip("needs root: a small filesystem is mounted")
			}
			defer func() {
				if err := unix.Unmount(home, unix.MNT_DETACH); err != nil {
					t.Error(err)
				}
			}()
			var told []api.EventKind
			log := openWith(t, audit.Options{Home: home, Degrade: degrade, Alarm: func(e api.Event) { told = append(told, e.Kind) }})
			defer log.Close()
			record(t, log, event("first"))
			fill := filepath.Join(home, "fill")
			if err := os.WriteFile(fill, make([]byte, 128<<10), 0o600); err == nil {
				t.Fatal("the filesystem has room")
			}
			e := event("big")
			e.Details = map[string]string{"argv": strings.Repeat("x", 4000)}
			const tries = 20
			failed := 0
			for range tries {
				if err := log.Record(t.Context(), e); err != nil {
					if api.CodeOf(err) != api.CodeUnavailable {
						t.Fatal(err)
					}
					failed++
				}
			}
			if (failed == 0) != degrade {
				t.Errorf("%d of %d were refused", failed, tries)
			}
			for range 2 {
				if failing, refuses := log.Failing(); !failing || refuses == degrade {
					t.Errorf("failing %v, refuses %v", failing, refuses)
				}
			}
			if err := os.Remove(fill); err != nil {
				t.Fatal(err)
			}
			if failing, refuses := log.Failing(); failing || refuses {
				t.Errorf("with room again: failing %v, refuses %v", failing, refuses)
			}
			record(t, log, event("last"))
			events := read(t, home)
			missing := tries - (len(events) - 2)
			r := verify(t, home)
			if len(r.Notes) != 1 || !strings.HasPrefix(r.Notes[0].Message, fmt.Sprintf("%d records could not be written", missing)) || missing < 1 {
				t.Errorf("%d are missing, notes %+v", missing, r.Notes)
			}
			if want := []api.EventKind{api.EventAuditFailing, api.EventAuditRecovered}; !slices.Equal(told, want) {
				t.Errorf("told %v, want %v", told, want)
			}
		})
	}
}
