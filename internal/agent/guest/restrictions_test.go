//go:build linux

package guest

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/agent"
)

// mountsOf are the options of the mounts of a process, by where they are, and how many
// mounts there are.
func mountsOf(t *testing.T, pid int) (_ map[string][]string, count int) {
	t.Helper()
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/mountinfo", pid))
	if err != nil {
		t.Fatal(err)
	}
	all := map[string][]string{}
	for line := range strings.Lines(string(data)) {
		count++
		if f := strings.Fields(line); len(f) > 5 {
			all[f[4]] = strings.Split(f[5], ",")
		}
	}
	return all, count
}

// What a rule puts over a path is a mount that gives no program rights and opens no device,
// and that is read-only unless the rule lets write; of the masks nothing else is left.
func TestRulesMount(t *testing.T) {
	in := boot(t, nil)
	top := t.TempDir()
	for _, dir := range []string{"ro", "rw/below", "den"} {
		if err := os.MkdirAll(filepath.Join(top, dir), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	for _, file := range []string{"file", "hidden"} {
		if err := os.WriteFile(filepath.Join(top, file), []byte("x"), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want := map[string]api.PathAccess{
		"ro": api.AccessRead, "file": api.AccessRead, "rw": api.AccessWrite, "rw/below": api.AccessRead,
		"den": api.AccessNone, "hidden": api.AccessNone, "made/here": api.AccessNone,
	}
	var rules []agent.Rule
	for _, path := range []string{"ro", "file", "rw", "rw/below", "den", "hidden", "made/here"} {
		rules = append(rules, agent.Rule{Name: "rules[" + path + "]", Target: api.Bytes(top), Path: api.Bytes(path), Access: want[path], Make: path == "made/here"})
	}
	_, before := mountsOf(t, in.cmd.Process.Pid)
	if err := in.Restrict(t.Context(), rules); err != nil {
		t.Fatal(err)
	}
	mounts, count := mountsOf(t, in.cmd.Process.Pid)
	if count != before+len(rules) {
		t.Errorf("%d mounts and %d rules came to %d mounts", before, len(rules), count)
	}
	for path, access := range want {
		options, there := mounts[filepath.Join(top, path)]
		if !there {
			t.Errorf("%s is no mount", path)
		}
		for _, option := range []string{"nosuid", "nodev"} {
			if !slices.Contains(options, option) {
				t.Errorf("%s is mounted %v, want %s", path, options, option)
			}
		}
		if slices.Contains(options, "ro") != (access != api.AccessWrite) {
			t.Errorf("%s, of which a rule allows %s, is mounted %v", path, access, options)
		}
	}
	if err := in.Restrict(t.Context(), nil); api.CodeOf(err) != api.CodeState {
		t.Errorf("rules were put in force twice: %v", err)
	}
}

// A rule leads over no symlink and through no file, and makes nothing where it need not.
func TestRulesRefuse(t *testing.T) {
	top := t.TempDir()
	if err := os.Mkdir(filepath.Join(top, "dir"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("/etc", filepath.Join(top, "link")); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(top, "file"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{"link", "link/passwd", "file/x", "missing", "dir/../link"} {
		in := boot(t, nil)
		_, before := mountsOf(t, in.cmd.Process.Pid)
		err := in.Restrict(t.Context(), []agent.Rule{{Name: "rule", Target: api.Bytes(top), Path: api.Bytes(path), Access: api.AccessNone}})
		if api.CodeOf(err) != api.CodeInvalid {
			t.Errorf("%s: %v, want %s", path, err, api.CodeInvalid)
		}
		if _, after := mountsOf(t, in.cmd.Process.Pid); after != before {
			t.Errorf("%s: %d mounts before and %d after", path, before, after)
		}
	}
	if left, err := os.ReadDir(top); err != nil || len(left) != 3 {
		t.Errorf("after rules that were refused: %v, %v", left, err)
	}
}
