package main

import (
	"os/exec"
	"path/filepath"
	"runtime/debug"
	"strings"
	"testing"

	"github.com/cloche-dev/cloche/test/longtest"
)

func TestVersionOf(t *testing.T) {
	const commit = "0123456789abcdef0123456789abcdef01234567"
	info := func(module string, settings ...string) *debug.BuildInfo {
		b := &debug.BuildInfo{Main: debug.Module{Version: module}}
		for i := 0; i+1 < len(settings); i += 2 {
			b.Settings = append(b.Settings, debug.BuildSetting{Key: settings[i], Value: settings[i+1]})
		}
		return b
	}
	for name, tt := range map[string]struct {
		release string
		info    *debug.BuildInfo
		want    string
	}{
		"make at a tag":         {"v1.2.3", info("v1.2.4-0.20260101000000-0123456789ab"), "v1.2.3"},
		"make after a tag":      {"v1.2.3-4-g0123456", info("(devel)"), "v1.2.3-4-g0123456"},
		"make without a record": {"v1.2.3", nil, "v1.2.3"},
		"go install":            {"", info("v1.2.3"), "v1.2.3"},
		"go build of a commit":  {"", info("v0.0.0-20260101000000-0123456789ab+dirty"), "v0.0.0-20260101000000-0123456789ab+dirty"},
		"commit alone":          {"", info("(devel)", "vcs.revision", commit, "vcs.modified", "false"), "devel-0123456789ab"},
		"changed commit":        {"", info("", "vcs.revision", commit, "vcs.modified", "true"), "devel-0123456789ab+dirty"},
		"short commit":          {"", info("(devel)", "vcs.revision", "01234"), "devel"},
		"no stamp":              {"", info("(devel)"), "devel"},
		"nothing":               {"", nil, "unknown"},
	} {
		if got := versionOf(tt.release, tt.info); got != tt.want {
			t.Errorf("%s: %q, want %q", name, got, tt.want)
		}
	}
}

// TestMakeSetsTheVersion builds as make does.
func TestMakeSetsTheVersion(t *testing.T) {
	longtest.Skip(t, "it builds the binary")
	if _, err := exec.LookPath("make"); err != nil {
		t.Skip("needs make")
	}
	bin := filepath.Join(t.TempDir(), "cloche")
	// The agent that other tests embed stays as it is.
	build := exec.CommandContext(t.Context(), "make", "-s", "build", "VERSION=v9.8.7-1-gabcdef0", "BIN="+bin, "AGENT="+bin+"-agent")
	build.Dir = "../.."
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("make build: %v\n%s", err, out)
	}
	for _, arg := range []string{"version", "--version"} {
		out, err := exec.CommandContext(t.Context(), bin, "--home", t.TempDir(), arg).CombinedOutput()
		if err != nil || !strings.HasPrefix(string(out), "cloche v9.8.7-1-gabcdef0 (API ") {
			t.Errorf("cloche %s: %v, %q", arg, err, out)
		}
	}
}
