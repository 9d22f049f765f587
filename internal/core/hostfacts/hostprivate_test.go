//go:build linux || darwin

package hostfacts

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/cloche-dev/cloche/api"
)

// plant makes files below dir; a name that ends with a slash is a directory.
func plant(t *testing.T, dir string, names ...string) {
	t.Helper()
	for _, name := range names {
		p := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(p), 0o755); err != nil {
			t.Fatal(err)
		}
		if strings.HasSuffix(name, "/") {
			if err := os.MkdirAll(p, 0o755); err != nil {
				t.Fatal(err)
			}
			continue
		}
		f, err := os.Create(p)
		if err != nil {
			t.Fatal(err)
		}
		f.Close()
	}
}

// TestPrivateIn: what holds keys is found at every level that is searched, and what a
// project has under the same names is left alone.
func TestPrivateIn(t *testing.T) {
	found := func(dir string) (out []string) {
		for _, p := range privateIn(dir) {
			out = append(out, p.Path+" "+string(p.Access))
		}
		slices.Sort(out)
		return out
	}
	none, read := " "+string(api.AccessNone), " "+string(api.AccessRead)
	for name, c := range map[string]struct{ files, want []string }{
		"a project": {[]string{
			".cargo/config.toml", ".claude/settings.json", ".docker/Dockerfile", ".kube/job.yaml", ".config/nextest.toml", ".npmrc", ".gitconfig",
			".bashrc", ".vscode/settings.json", "src/main", ".local/bin/tool", ".m2/settings.xml",
		}, nil},
		"keys of its own": {[]string{".ssh/id", ".aws/credentials", ".docker/config.json", ".kube/config", ".netrc", ".cargo/credentials.toml", ".config/gh/hosts.yml"}, []string{
			".aws" + none, ".cargo" + read, ".cargo/credentials.toml" + none, ".config/gh" + none, ".docker/config.json" + none, ".kube/config" + none, ".netrc" + none, ".ssh" + none,
		}},
		"a home among others": {[]string{"u/bob/.ssh/id", "u/bob/.bashrc", "u/bob/.config/systemd/user/x.service", "u/bob/.npmrc", "u/ann/.bashrc", "u/bob/work/.gnupg/"}, []string{
			"u/bob/.bashrc" + read, "u/bob/.config/systemd" + read, "u/bob/.npmrc" + none, "u/bob/.ssh" + none,
		}},
		"too deep": {[]string{"a/b/c/.ssh/id"}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			plant(t, dir, c.files...)
			if got := found(dir); !slices.Equal(got, c.want) {
				t.Errorf("found %q, want %q", got, c.want)
			}
		})
	}
	t.Run("a part of a name", func(t *testing.T) {
		dir := t.TempDir()
		plant(t, dir, ".config/gh/hosts.yml", ".config/mytool/x", ".local/share/keyrings/login")
		if got, want := found(filepath.Join(dir, ".config")), []string{"gh" + none}; !slices.Equal(got, want) {
			t.Errorf("found %q, want %q", got, want)
		}
		if got, want := found(filepath.Join(dir, ".local/share")), []string{"keyrings" + none}; !slices.Equal(got, want) {
			t.Errorf("found %q, want %q", got, want)
		}
	})
	t.Run("symlinks", func(t *testing.T) {
		dir := t.TempDir()
		plant(t, dir, "elsewhere/id", "in/deep/.ssh/id", "in/gh/hosts.yml")
		for name, to := range map[string]string{".ssh": "elsewhere", "out": "/", "loop": ".", ".config": "in"} {
			if err := os.Symlink(to, filepath.Join(dir, name)); err != nil {
				t.Fatal(err)
			}
		}
		if got, want := found(dir), []string{"elsewhere" + none, "in/deep/.ssh" + none, "in/gh" + none}; !slices.Equal(got, want) {
			t.Errorf("found %q, want %q", got, want)
		}
	})
	t.Run("many", func(t *testing.T) {
		dir := t.TempDir()
		plant(t, dir, ".ssh/id", "a/.ssh/id")
		for i := range privateDirs + 10 {
			plant(t, dir, fmt.Sprintf("d%04d/", i))
		}
		plant(t, dir, "z/.ssh/id")
		// The search ends at its bound, with what is nearest found.
		if got, want := found(dir), []string{".ssh" + none, "a/.ssh" + none}; !slices.Equal(got, want) {
			t.Errorf("found %q, want %q", got, want)
		}
	})
}
