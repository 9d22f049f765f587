//go:build linux

package core_test

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/audit"
	"github.com/cloche-dev/cloche/internal/core"
	"github.com/cloche-dev/cloche/internal/engine"
)

// Status and Doctor tell what is wrong with the home, the audit log and the policy file,
// and stop telling when it is over.
func TestStatusOfFaults(t *testing.T) {
	h := newFixture(t)
	tenant := core.Caller{Tenant: "acme"}
	check := func(what string, available bool, reason api.StatusReason, problems ...string) {
		t.Helper()
		st := h.Status(t.Context(), operator)
		if st.Available != available || st.Reason != reason || (st.Message == "") != available {
			t.Errorf("%s: %+v, want available %v, reason %q", what, st, available, reason)
		}
		d, err := h.Doctor(t.Context(), operator)
		if err != nil {
			t.Fatal(err)
		}
		for _, got := range [][]api.Problem{st.Problems, d.Problems} {
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
	check("a full disk", false, api.ReasonDiskFull, "home has 0 inodes free")
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
	check("no audit log", false, api.ReasonAuditFailing, "what needs a record is refused")
	h.full = "has 0 KiB free"
	h.RejectRules(t.Context(), "", errors.New("gone"))
	check("all at once", false, api.ReasonDiskFull, "0 KiB free", "refused", "gone")
}

// Doctor tells what holds a private workspace without a size: nothing
// does where it is a volume, be it on this system or of an engine elsewhere.
func TestDoctorOfTheDefaultBound(t *testing.T) {
	const watched, none = "watched while programs write", ", where workspaces are volumes"
	here := fakeReport{name: "here", usable: true, shares: true}
	away := fakeReport{name: "away", usable: true}
	for name, c := range map[string]struct {
		engines []fakeReport
		want    string
	}{
		"files of this host":     {[]fakeReport{here}, watched},
		"volumes":                {[]fakeReport{away}, "no bound on away" + none},
		"both":                   {[]fakeReport{here, away}, watched + "; no bound on away" + none},
		"one that is not usable": {[]fakeReport{here, {name: "away"}}, watched},
	} {
		t.Run(name, func(t *testing.T) {
			var engines []engine.Engine
			for _, r := range c.engines {
				engines = append(engines, r)
			}
			prober := core.NewProber(engines)
			defer prober.Close()
			home := t.TempDir()
			if err := os.Chmod(home, 0o700); err != nil {
				t.Fatal(err)
			}
			log, err := audit.Open(audit.Options{Home: home, Logger: slog.New(slog.NewTextHandler(t.Output(), nil))})
			if err != nil {
				t.Fatal(err)
			}
			defer log.Close()
			d, err := core.New(core.Options{Audit: log, Prober: prober, Home: home, HomeFull: func(string) string { return "" }}).Doctor(t.Context(), operator)
			if err != nil {
				t.Fatal(err)
			}
			if got := d.Host["workspace_default"]; got != c.want {
				t.Errorf("workspace_default is %q, want %q", got, c.want)
			}
		})
	}
}

// Ready tells one word of what is wrong, and looks once a second however often it is
// asked.
func TestReady(t *testing.T) {
	for name, c := range map[string]struct {
		full             string
		usable, noRecord bool
		want             core.Unready
	}{
		"well":         {usable: true},
		"a full disk":  {usable: true, full: "has 0 KiB free", want: core.UnreadyDisk},
		"no audit log": {usable: true, noRecord: true, want: core.UnreadyAudit},
		"no engine":    {want: core.UnreadyEngine},
	} {
		t.Run(name, func(t *testing.T) {
			prober := core.NewProber([]engine.Engine{fakeReport{name: "gvisor", usable: c.usable, tier: api.TierGVisor}})
			defer prober.Close()
			home := t.TempDir()
			if err := os.Chmod(home, 0o700); err != nil {
				t.Fatal(err)
			}
			log, err := audit.Open(audit.Options{Home: home, Logger: slog.New(slog.NewTextHandler(t.Output(), nil))})
			if err != nil {
				t.Fatal(err)
			}
			defer log.Close()
			if c.noRecord {
				if err := log.Close(); err != nil {
					t.Fatal(err)
				}
			}
			looks, began := 0, time.Now()
			s := core.New(core.Options{Audit: log, Prober: prober, Home: home, HomeFull: func(string) string { looks++; return c.full }})
			// The first caller may have left.
			gone, cancel := context.WithCancel(t.Context())
			cancel()
			for range 1000 {
				if got := s.Ready(gone); got != c.want {
					t.Fatalf("not ready for %q, want %q", got, c.want)
				}
			}
			if most := 1 + int(time.Since(began)/time.Second); looks > most {
				t.Errorf("it looked %d times, at most %d are allowed", looks, most)
			}
		})
	}
}

// TestHostChecks: what is wrong with the host is wrong with each engine that shares its files.
func TestHostChecks(t *testing.T) {
	wrong := api.Problem{What: "no mounts", Mend: "give it CAP_SYS_ADMIN"}
	for _, shares := range []bool{true, false} {
		for _, problem := range []*api.Problem{&wrong, nil} {
			p := core.NewProber([]engine.Engine{fakeReport{name: "e", usable: true, shares: shares}}, func() *api.Problem { return problem })
			r := p.Refresh(t.Context())[0]
			p.Close()
			if broken := shares && problem != nil; r.Usable == broken || slices.Contains(r.Problems, wrong) != broken {
				t.Errorf("shares %v, problem %v: %+v", shares, problem, r)
			}
		}
	}
}

// fakeReport is an engine that only says what it is.
type fakeReport struct {
	engine.Engine
	name           string
	usable, shares bool
	tier           api.Tier
}

func (r fakeReport) Name() string { return r.name }

func (r fakeReport) Probe(context.Context) engine.Report {
	return engine.Report{Name: r.name, Usable: r.usable, Tier: r.tier, SharesHostFS: r.shares}
}
