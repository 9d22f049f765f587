//go:build linux

package sandbox_test

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/policy"
)

// TestSkillThatVanished: a skill that is gone when the sandbox is made is left out, with
// an event, and the others are there. Nothing is made in its place.
func TestSkillThatVanished(t *testing.T) {
	w := newFixture(t)
	m := w.manager(false)
	var skills []policy.SkillFact
	for _, name := range []string{"stays", "goes"} {
		dir := filepath.Join(t.TempDir(), name)
		if err := os.Mkdir(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		fi, err := os.Stat(dir)
		if err != nil {
			t.Fatal(err)
		}
		st := fi.Sys().(*syscall.Stat_t)
		skills = append(skills, policy.SkillFact{Name: name, Dir: policy.DirFact{
			Exists: true, Dir: true, Real: dir, OwnerUID: os.Getuid(), Dev: st.Dev, Ino: st.Ino,
		}})
	}
	permit, err := policy.Decide(policy.Request{
		Spec:  api.SandboxSpec{Name: "x", Skills: []api.SkillUse{{Name: api.AllSkills}}},
		Facts: policy.Facts{Engines: []api.EngineReport{w.machine.Engine().Probe(t.Context())}, Home: w.dir, Skills: skills},
	}, operator, testRules)
	if err != nil {
		t.Fatal(err)
	}
	gone := skills[1].Dir.Real
	if err := os.Remove(gone); err != nil {
		t.Fatal(err)
	}
	sb, err := m.Create(t.Context(), permit, nil)
	if err != nil {
		t.Fatal(err)
	}
	if len(sb.Skills) != 1 || sb.Skills[0].Name != "stays" || !strings.Contains(sb.Degraded, "goes") {
		t.Errorf("the record has the skills %v and says %q", sb.Skills, sb.Degraded)
	}
	if got := w.kinds(); !slices.Equal(got, []string{"created", "degraded"}) {
		t.Errorf("the events were %v", got)
	}
	plans := w.machine.Plans()
	for _, mount := range plans[len(plans)-1].Mounts {
		if strings.HasSuffix(mount.Target, "/goes") {
			t.Errorf("it is mounted all the same: %+v", mount)
		}
	}
	if _, err := os.Lstat(gone); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("something was made in its place: %v", err)
	}
	if err := m.Remove(t.Context(), operator, "x"); err != nil {
		t.Error(err)
	}
	w.nothingLeft(m)
}
