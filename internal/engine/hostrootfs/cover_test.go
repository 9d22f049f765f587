//go:build linux

package hostrootfs

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// TestCoversWhatIsUnknown: an unknown entry of /proc is covered, and nothing
// that is kept is.
func TestCoversWhatIsUnknown(t *testing.T) {
	dir := t.TempDir()
	for _, name := range []string{"brand_new", "cpuinfo", "stat"} {
		if err := os.WriteFile(filepath.Join(dir, name), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for _, name := range []string{"driver_of_tomorrow", "sys", "sysvipc"} {
		if err := os.Mkdir(filepath.Join(dir, name), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Symlink("self/mounts", filepath.Join(dir, "link")); err != nil {
		t.Fatal(err)
	}
	files, dirs := otherProc(dir)
	if !slices.Equal(files, []string{"/proc/brand_new"}) || !slices.Equal(dirs, []string{"/proc/driver_of_tomorrow"}) {
		t.Errorf("covers the files %q and the directories %q", files, dirs)
	}
	if files, dirs := otherProc(filepath.Join(dir, "none")); len(files)+len(dirs) > 0 {
		t.Errorf("without /proc: %q, %q", files, dirs)
	}
}

// TestCovers: every entry of this machine's /proc is kept or covered, and once.
func TestCovers(t *testing.T) {
	files, dirs := Covers()
	all := slices.Concat(files, dirs)
	slices.Sort(all)
	if n := len(slices.Compact(slices.Clone(all))); n != len(all) {
		t.Errorf("something is covered twice: %q", all)
	}
	entries, err := os.ReadDir("/proc")
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		name := e.Name()
		if name[0] >= '1' && name[0] <= '9' {
			continue
		}
		if slices.Contains(keptProc(), name) == slices.Contains(all, "/proc/"+name) {
			t.Errorf("/proc/%s is both kept and covered, or neither", name)
		}
	}
}

// TestQuietStat has the processors and no counters.
func TestQuietStat(t *testing.T) {
	got := quietStat("0-2,5\n", 1700000000)
	for _, want := range []string{"cpu  0 0", "\ncpu0 0", "\ncpu1 0", "\ncpu2 0", "\ncpu5 0", "\nbtime 1700000000\n", "\nctxt 0\n", "\nintr 0\n", "\nprocs_running 1\n"} {
		if !strings.Contains(got, want) {
			t.Errorf("no %q in:\n%s", want, got)
		}
	}
	if strings.Contains(got, "cpu3") || strings.Contains(got, "cpu4") {
		t.Errorf("it has processors that are not there:\n%s", got)
	}
	for _, strange := range []string{"", "x", "1-", "5-1", "0-99999999999", "-1"} {
		if got := quietStat(strange, 0); strings.Count(got, "\ncpu") > 1 {
			t.Errorf("%q has processors:\n%s", strange, got)
		}
	}
}

// TestStandIns are small enough for where engines put them, and each sandbox's own.
func TestStandIns(t *testing.T) {
	a, b := StandIns(), StandIns()
	for i, f := range a {
		if f.Text == "" || len(f.Text) > 64<<10 || f.Name == "" || !filepath.IsAbs(f.Target) {
			t.Errorf("%+v", f)
		}
		if f.Name != "boot_id" {
			continue
		}
		if f.Text == b[i].Text || !regexp.MustCompile(`^[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}\n$`).MatchString(f.Text) {
			t.Errorf("boot ids %q and %q", f.Text, b[i].Text)
		}
	}
}
