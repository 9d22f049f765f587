//go:build linux

package core_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/cloche-dev/cloche"
	"github.com/cloche-dev/cloche/internal/core"
)

// Status and Doctor tell what is wrong with the home, the audit log and the policy file,
// and stop telling when it is over.
func TestStatusOfFaults(t *testing.T) {
	h := newHouse(t)
	tenant := core.Caller{Tenant: "acme"}
	check := func(what string, available bool, reason cloche.StatusReason, problems ...string) {
		t.Helper()
		st := h.Status(t.Context(), operator)
		if st.Available != available || st.Reason != reason || (st.Message == "") != available {
			t.Errorf("%s: %+v, want available %v, reason %q", what, st, available, reason)
		}
		d, err := h.Doctor(t.Context(), operator)
		if err != nil {
			t.Fatal(err)
		}
		for _, got := range [][]cloche.Problem{st.Problems, d.Problems} {
			if len(got) != len(problems) {
				t.Fatalf("%s: problems %+v, want %q", what, got, problems)
			}
			for i, want := range problems {
				if !strings.Contains(got[i].What, want) || got[i].Mend == "" {
					t.Errorf("%s: problem %+v, want %q", what, got[i], want)
				}
			}
		}
		if other := h.Status(t.Context(), tenant); other.Problems != nil || other.Available != available || strings.Contains(other.Message, h.dir) {
			t.Errorf("%s: a tenant is told %+v", what, other)
		}
	}
	check("nothing", true, "")

	h.full = "has 0 inodes free"
	check("a full disk", false, cloche.ReasonDiskFull, "home has 0 inodes free")
	h.full = ""
	check("room again", true, "")

	h.RejectRules(t.Context(), "abc", errors.New("line 7: no such key"))
	check("a rejected policy file", true, "", "line 7: no such key")
	h.RestoreRules()
	check("the old policy file", true, "")
	h.RejectRules(t.Context(), "abc", errors.New("line 7: no such key"))
	if err := h.UseRules(t.Context(), h.rules, "def"); err != nil {
		t.Fatal(err)
	}
	check("another policy file", true, "")

	if err := h.log.Close(); err != nil {
		t.Fatal(err)
	}
	check("no audit log", false, cloche.ReasonAuditFailing, "what needs a record is refused")
	h.full = "has 0 KiB free"
	h.RejectRules(t.Context(), "", errors.New("gone"))
	check("all at once", false, cloche.ReasonDiskFull, "0 KiB free", "refused", "gone")
}
