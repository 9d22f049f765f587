package engine

import (
	"archive/tar"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	erofs "github.com/erofs/go-erofs"

	"github.com/cloche-dev/cloche/api"
)

// TestCheckMountPoints: no link of an image, or of a layer above it, leads a mount point
// into a mount of the host.
func TestCheckMountPoints(t *testing.T) {
	for _, c := range []struct {
		name    string
		links   map[string]string // of the image
		upper   map[string]string // of the layer: a link, or empty for a directory
		mounts  []string
		own     []string
		volumes []string
		refused string // what the error names; empty is allowed
	}{
		{name: "no link", mounts: []string{"/m", "/m/deeper", "/etc/hosts"}},
		{name: "a link in the root", links: map[string]string{"/bin": "usr/bin", "/var/run": "/run"}, mounts: []string{"/m", "/bin/x", "/var/run/y"}},
		{name: "a link to a mount", links: map[string]string{"/etc": "/m"}, mounts: []string{"/m", "/etc/hosts"}, refused: `"/etc" of the image leads "/etc/hosts" into what is mounted at "/m"`},
		{name: "the other order", links: map[string]string{"/etc": "/m"}, mounts: []string{"/etc/hosts", "/m"}, refused: `"/etc/hosts"`},
		{name: "relative, over another link and up", links: map[string]string{"/a": "b/../c", "/c": "../../m/x"}, mounts: []string{"/m", "/a/f"}, refused: `"/a/f"`},
		{name: "below a mount", links: map[string]string{"/etc": "m/sub/dir"}, mounts: []string{"/m", "/etc/hosts"}, refused: `"/etc/hosts"`},
		{name: "onto the mount itself", links: map[string]string{"/x": "/m"}, mounts: []string{"/m", "/x"}, refused: `"/x"`},
		{name: "a mount over a link, and another below it", links: map[string]string{"/x": "/y"}, mounts: []string{"/x", "/y/z"}},
		{name: "both over one link", links: map[string]string{"/x": "/y"}, mounts: []string{"/x", "/x/z"}},
		{name: "into what a link leads another to", links: map[string]string{"/x": "/y", "/etc": "/y"}, mounts: []string{"/x", "/etc/hosts"}, refused: `"/etc/hosts"`},
		{name: "the engine's own", links: map[string]string{"/etc": "/m"}, mounts: []string{"/m"}, own: []string{"/etc/resolv.conf"}, refused: `"/etc/resolv.conf"`},
		{name: "a volume", links: map[string]string{"/etc": "/v"}, volumes: []string{"/v"}, mounts: []string{"/etc/hosts"}, refused: `"/etc/hosts"`},
		{name: "the agent", links: map[string]string{"/.agent": "/m"}, mounts: []string{"/m"}, refused: `"/.agent"`},
		{name: "the kernel's", links: map[string]string{"/proc": "/m"}, mounts: []string{"/m"}, refused: `"/proc"`},
		{name: "memory", links: map[string]string{"/tmp": "/m/t"}, mounts: []string{"/m"}, refused: `"/tmp"`},
		{name: "a link into memory", links: map[string]string{"/scratch": "tmp"}, mounts: []string{"/scratch/x"}},
		{name: "a name that only begins alike", links: map[string]string{"/etc": "/mm"}, mounts: []string{"/m", "/etc/hosts"}},
		{name: "a circle", links: map[string]string{"/a": "/b", "/b": "/a"}, mounts: []string{"/a/x"}, refused: "in a circle"},
		{name: "a link of the layer", upper: map[string]string{"etc": "/m"}, mounts: []string{"/m", "/etc/hosts"}, refused: `"/etc/hosts"`},
		{name: "a directory of the layer in its place", links: map[string]string{"/etc": "/m"}, upper: map[string]string{"etc": ""}, mounts: []string{"/m", "/etc/hosts"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			p := Plan{Root: Root{Image: linkImage(t, c.links)}, Agent: Agent{Target: "/.agent"}, Tmpfs: []Tmpfs{{Target: "/tmp"}}}
			if c.upper != nil {
				p.Root.Upper = linkLayer(t, c.upper)
			}
			for _, m := range c.mounts {
				p.Mounts = append(p.Mounts, Mount{Target: m})
			}
			for _, v := range c.volumes {
				p.Volumes = append(p.Volumes, Volume{Target: v})
			}
			err := p.CheckMountPoints(c.own...)
			switch {
			case c.refused == "" && err != nil:
				t.Error(err)
			case c.refused != "" && (api.CodeOf(err) != api.CodeInvalid || !strings.Contains(err.Error(), c.refused)):
				t.Errorf("the error is %v, want one that names %s", err, c.refused)
			}
		})
	}
}

func linkImage(t *testing.T, links map[string]string) string {
	t.Helper()
	name := filepath.Join(t.TempDir(), "root.erofs")
	f, err := os.Create(name)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	w := erofs.Create(f)
	errs := []error{w.Mkdir("/var", 0o755), w.Mkdir("/usr", 0o755), w.Mkdir("/usr/bin", 0o755)}
	for at, to := range links {
		errs = append(errs, w.Symlink(to, at))
	}
	if err := errors.Join(append(errs, w.Close())...); err != nil {
		t.Fatal(err)
	}
	return name
}

func linkLayer(t *testing.T, names map[string]string) string {
	t.Helper()
	name := filepath.Join(t.TempDir(), "upper.tar")
	f, err := os.Create(name)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	w := tar.NewWriter(f)
	for at, to := range names {
		h := tar.Header{Name: "./" + at, Typeflag: tar.TypeSymlink, Linkname: to}
		if to == "" {
			h = tar.Header{Name: "./" + at + "/", Typeflag: tar.TypeDir, Mode: 0o755}
		}
		if err := w.WriteHeader(&h); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return name
}
