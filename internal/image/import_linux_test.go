package image

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	ocilayout "github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/klauspost/compress/zstd"
	"golang.org/x/sys/unix"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/archive"
)

// twoLayers is an image and what is in it.
func twoLayers(t testing.TB) (v1.Image, map[string]string) {
	return imageOf(t,
		layerOf(t, file{name: "bin/", typ: tar.TypeDir}, file{name: "bin/a", body: "one"}, file{name: "bin/gone", body: "x"}),
		layerOf(t, file{name: "bin/.wh.gone"}, file{name: "bin/b", typ: tar.TypeLink, link: "bin/a"}),
	), map[string]string{"bin": "dir", "bin/a": "one", "bin/b": "one"}
}

// packTar makes a tar of a directory as other tools do.
func packTar(t testing.TB, dir string) []byte {
	t.Helper()
	var buf bytes.Buffer
	w := tar.NewWriter(&buf)
	must(t, w.AddFS(os.DirFS(dir)))
	must(t, w.Close())
	return buf.Bytes()
}

func gzipped(t testing.TB, raw []byte) []byte {
	t.Helper()
	var buf bytes.Buffer
	w := gzip.NewWriter(&buf)
	_, err := w.Write(raw)
	must(t, errors.Join(err, w.Close()))
	return buf.Bytes()
}

func write(t testing.TB, raw []byte) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "archive")
	must(t, os.WriteFile(path, raw, 0o600))
	return path
}

func TestImport(t *testing.T) {
	img, want := twoLayers(t)
	digest, err := img.Digest()
	must(t, err)
	id, err := img.ConfigName()
	must(t, err)

	layoutDir := t.TempDir()
	l, err := ocilayout.Write(layoutDir, empty.Index)
	must(t, err)
	must(t, l.AppendImage(img, ocilayout.WithAnnotations(map[string]string{refAnnotation: "1"})))
	tag, err := name.NewTag("team/app:1")
	must(t, err)
	var saved bytes.Buffer
	must(t, tarball.Write(tag, img, &saved))

	raw := layerTar(t, file{name: "bin/", typ: tar.TypeDir}, file{name: "bin/a", body: "one"}, file{name: "bin/b", typ: tar.TypeLink, link: "bin/a"})
	z, err := zstd.NewWriter(nil)
	must(t, err)
	rootDir := t.TempDir()
	must(t, os.Mkdir(filepath.Join(rootDir, "bin"), 0o755))
	must(t, os.WriteFile(filepath.Join(rootDir, "bin/a"), []byte("one"), 0o755))
	must(t, os.Link(filepath.Join(rootDir, "bin/a"), filepath.Join(rootDir, "bin/b")))

	for what, c := range map[string]struct{ path, source, digest string }{
		"layout":               {layoutDir, "oci", digest.String()},
		"tar of a layout":      {write(t, packTar(t, layoutDir)), "oci", digest.String()},
		"packed layout":        {write(t, gzipped(t, packTar(t, layoutDir))), "oci", digest.String()},
		"docker save":          {write(t, saved.Bytes()), "docker-archive", id.String()},
		"packed docker save":   {write(t, gzipped(t, saved.Bytes())), "docker-archive", id.String()},
		"tar":                  {write(t, raw), "tar", ""},
		"gzip":                 {write(t, gzipped(t, raw)), "tar", ""},
		"zstd":                 {write(t, z.EncodeAll(raw, nil)), "tar", ""},
		"directory":            {rootDir, "directory", ""},
		"manifest that is not": {write(t, layerTar(t, file{name: "manifest.json", body: `{"a":1}`}, file{name: "x", body: "y"})), "tar", ""},
	} {
		t.Run(what, func(t *testing.T) {
			s := images(t)
			o := ImportOptions{Config: api.ImageConfig{User: "1001"}}
			got, err := s.Import(t.Context(), "team/base:2", c.path, o)
			must(t, err)
			if got.Source != c.source || got.Name != "team/base:2" || c.digest != "" && got.Digest != c.digest || got.Config.User != "1001" {
				t.Errorf("imported %+v", got)
			}
			root, err := openStore(t, s.dir).Resolve(t.Context(), "team/base:2", Need{})
			must(t, err)
			fsck(t, root.Image)
			if what == "manifest that is not" {
				return
			}
			if got := contentOf(t, open(t, root.Image)); !maps.Equal(got, want) {
				t.Errorf("got %q", got)
			}
			again, err := s.Import(t.Context(), "other", c.path, o)
			if err != nil || again.Digest != got.Digest {
				t.Errorf("again it is %s, %v", again.Digest, err)
			}
			if strings.HasSuffix(c.path, "archive") {
				f, err := os.Open(c.path)
				must(t, err)
				defer f.Close()
				streamed, err := s.ImportStream(t.Context(), "third", f, o)
				if err != nil || streamed.Digest != got.Digest {
					t.Errorf("as a stream it is %s, %v", streamed.Digest, err)
				}
			}
			if left, _ := os.ReadDir(s.oci.at("temp")); len(left) != 0 {
				t.Errorf("temp holds %v", left)
			}
		})
	}
	// Without a name it has its own, where there is one.
	s := images(t)
	if got, err := s.Import(t.Context(), "", write(t, saved.Bytes()), ImportOptions{}); err != nil || got.Name != "team/app:1" {
		t.Errorf("got %+v, %v", got, err)
	}
	_, err = s.Import(t.Context(), "", layoutDir, ImportOptions{})
	wantError(t, err, api.CodeInvalid, false, "no name of its own")
	for _, bad := range []string{"host", "Bad", "a@" + digest.String()} {
		if _, err := s.Import(t.Context(), bad, layoutDir, ImportOptions{}); !errors.Is(err, api.ErrInvalid) {
			t.Errorf("%s: %v", bad, err)
		}
	}
}

func TestImportOfOneOfSeveral(t *testing.T) {
	one, _ := twoLayers(t)
	two := simple(t)
	tags := map[name.Reference]v1.Image{}
	for text, img := range map[string]v1.Image{"a:1": one, "b:1": two} {
		tag, err := name.NewTag(text)
		must(t, err)
		tags[tag] = img
	}
	var saved bytes.Buffer
	must(t, tarball.MultiRefWrite(tags, &saved))
	dir := t.TempDir()
	l, err := ocilayout.Write(dir, empty.Index)
	must(t, err)
	must(t, l.AppendImage(one, ocilayout.WithAnnotations(map[string]string{nameAnnotation: "docker.io/library/a:1"})))
	must(t, l.AppendImage(two, ocilayout.WithAnnotations(map[string]string{nameAnnotation: "docker.io/library/b:1"})))
	for _, path := range []string{write(t, saved.Bytes()), dir} {
		s := images(t)
		_, err := s.Import(t.Context(), "x", path, ImportOptions{})
		wantError(t, err, api.CodeInvalid, false, "a:1", "b:1")
		got, err := s.Import(t.Context(), "", path, ImportOptions{Ref: "b:1"})
		if err != nil || got.Name != "b:1" || len(got.Layers) != 1 {
			t.Errorf("got %+v, %v", got, err)
		}
		nothingElse, _ := os.ReadDir(s.oci.at("images"))
		if len(nothingElse) != 1 {
			t.Errorf("records %v", nothingElse)
		}
	}
}

func TestBadImports(t *testing.T) {
	img, _ := twoLayers(t)
	broken := func(change func(dir string)) string {
		dir := t.TempDir()
		l, err := ocilayout.Write(dir, empty.Index)
		must(t, err)
		must(t, l.AppendImage(img))
		change(dir)
		return dir
	}
	layers, err := img.Layers()
	must(t, err)
	layer, err := layers[0].Digest()
	must(t, err)
	blob := "blobs/sha256/" + layer.Hex
	// A space at the end changes what a file is, and nothing of what it says.
	changed := func(digest v1.Hash, err error) string {
		must(t, err)
		return broken(func(d string) {
			path := filepath.Join(d, "blobs", "sha256", digest.Hex)
			raw, err := os.ReadFile(path)
			must(t, err)
			must(t, os.Remove(path))
			must(t, os.WriteFile(path, append(raw, ' '), 0o600))
		})
	}
	foreign, err := mutate.ConfigFile(empty.Image, &v1.ConfigFile{OS: "linux", Architecture: "s390x"})
	must(t, err)
	tag, err := name.NewTag("x:1")
	must(t, err)
	var saved bytes.Buffer
	must(t, tarball.Write(tag, foreign, &saved))
	fifo := filepath.Join(t.TempDir(), "fifo")
	must(t, unix.Mkfifo(fifo, 0o600))
	for what, c := range map[string]struct {
		path string
		code api.Code
	}{
		"missing":          {"/no/such/file", api.CodeInvalid},
		"fifo":             {fifo, api.CodeInvalid},
		"device":           {"/dev/zero", api.CodeInvalid},
		"empty":            {write(t, nil), api.CodeInvalid},
		"text":             {write(t, []byte(strings.Repeat("text ", 500))), api.CodeInvalid},
		"xz":               {write(t, []byte("\xfd7zXZ\x00xxxxxxxxxxx")), api.CodeUnsupported},
		"other platform":   {write(t, saved.Bytes()), api.CodeUnsupported},
		"upwards":          {write(t, layerTar(t, file{name: "../x", body: "x"})), api.CodeInvalid},
		"changed layer":    {broken(func(d string) { must(t, os.WriteFile(filepath.Join(d, blob), []byte("other"), 0o600)) }), api.CodeInvalid},
		"changed config":   {changed(img.ConfigName()), api.CodeInvalid},
		"changed manifest": {changed(img.Digest()), api.CodeInvalid},
		"missing layer":    {broken(func(d string) { must(t, os.Remove(filepath.Join(d, blob))) }), api.CodeInvalid},
		"layer elsewhere":  {broken(func(d string) { linkTo(t, filepath.Join(d, blob), "/etc/passwd") }), api.CodeInvalid},
		"broken index": {broken(func(d string) {
			must(t, os.WriteFile(filepath.Join(d, "index.json"), []byte(`{"manifests":[{"digest":"sha256:../../x"}]}`), 0o600))
		}), api.CodeInvalid},
		"huge index": {broken(func(d string) { must(t, os.Truncate(filepath.Join(d, "index.json"), maxManifest+1)) }), api.CodeTooLarge},
	} {
		t.Run(what, func(t *testing.T) {
			s := images(t)
			_, err := s.Import(t.Context(), "x", c.path, ImportOptions{})
			wantError(t, err, c.code, false)
			nothingVisible(t, s)
		})
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	s := images(t)
	_, err = s.Import(ctx, "x", write(t, layerTar(t, file{name: "x", body: "y"})), ImportOptions{})
	wantError(t, err, api.CodeCanceled, false)
	nothingVisible(t, s)
}

func linkTo(t testing.TB, path, target string) {
	t.Helper()
	must(t, os.Remove(path))
	must(t, os.Symlink(target, path))
}

func TestImportOfADirectoryStaysInIt(t *testing.T) {
	dir := t.TempDir()
	put(t, dir, "a/b", "content", 0o644)
	must(t, os.Symlink("/etc/passwd", filepath.Join(dir, "out")))
	must(t, os.Symlink("/etc", filepath.Join(dir, "etc")))
	must(t, unix.Mkfifo(filepath.Join(dir, "fifo"), 0o600))
	if os.Geteuid() == 0 {
		must(t, os.Chown(filepath.Join(dir, "a/b"), 1234, 5678))
	}
	s := images(t)
	img, err := s.Import(t.Context(), "base", dir, ImportOptions{})
	must(t, err)
	root, err := s.Resolve(t.Context(), "base", Need{})
	must(t, err)
	got := contentOf(t, open(t, root.Image))
	delete(got, "etc")
	if want := map[string]string{"a": "dir", "a/b": "content", "out": "-> /etc/passwd"}; !maps.Equal(got, want) {
		t.Errorf("got %q", got)
	}
	if len(img.Notes) != 1 || !strings.Contains(img.Notes[0], "FIFO of /fifo") {
		t.Errorf("notes %q", img.Notes)
	}
}

// TestDiskFull has a disk of a few megabytes.
func TestDiskFull(t *testing.T) {
	dir := t.TempDir()
	if err := unix.Mount("tmpfs", dir, "tmpfs", unix.MS_NOSUID|unix.MS_NODEV, "size=3m,mode=700"); err != nil {
		t.Skipf("needs the right to mount a small filesystem: %v", err)
	}
	defer func() { must(t, unix.Unmount(dir, unix.MNT_DETACH)) }()
	r := startRegistry(t)
	noise := simple(t) // 600 kB, which do not compress
	zeros := strings.Repeat("x", 4<<20)
	r.push(t, "fits:1", noise)
	r.push(t, "unpack:1", imageOf(t, layerOf(t, file{name: "x", body: zeros})))
	var many []v1.Layer
	for i := range 8 {
		many = append(many, layerOf(t, file{name: "noise", body: strings.Repeat(string(rune('a'+i)), 1) + noiseOf(byte(i))}))
	}
	r.push(t, "download:1", imageOf(t, many...))
	s := openStore(t, filepath.Join(dir, "images"))
	for _, ref := range []string{"unpack:1", "download:1"} {
		_, err := s.Pull(t.Context(), r.host+"/"+ref, PullOptions{})
		wantError(t, err, api.CodeNoCapacity, true, "no space")
		nothingVisible(t, s)
	}
	_, err := s.ImportStream(t.Context(), "x", bytes.NewReader(layerTar(t, file{name: "x", body: zeros})), ImportOptions{})
	wantError(t, err, api.CodeNoCapacity, true)
	nothingVisible(t, s)
	if _, err := s.Pull(t.Context(), r.host+"/fits:1", PullOptions{}); err != nil {
		t.Errorf("after that the disk holds nothing more: %v", err)
	}
}

func TestRemoveAndPrune(t *testing.T) {
	r := startRegistry(t)
	s := images(t)
	var digests []string
	pull := func(ref string, img v1.Image) {
		digests = append(digests, r.push(t, ref, img))
		_, err := s.Pull(t.Context(), r.host+"/"+ref, PullOptions{})
		must(t, err)
	}
	one, two := simple(t), imageOf(t, layerOf(t, file{name: "x", body: noiseOf(9)}))
	pull("one:1", one)
	pull("one:2", one)
	pull("two:1", two)
	same, err := mutate.Config(one, v1.Config{User: "7"})
	must(t, err)
	pull("three:1", same) // the same files
	if roots, _ := os.ReadDir(s.oci.at("roots")); len(roots) != 2 {
		t.Errorf("%d root filesystems of two", len(roots))
	}
	err = s.Remove(t.Context(), r.host+"/two:1", digests[2:3])
	wantError(t, err, api.CodeConflict, false, "in use")
	must(t, s.Remove(t.Context(), r.host+"/one:1", digests[:1])) // another name is left
	err = s.Remove(t.Context(), r.host+"/one:1", nil)
	wantError(t, err, api.CodeNotFound, false)
	err = s.Remove(t.Context(), r.host+"/one:2", digests[:1])
	wantError(t, err, api.CodeConflict, false)
	must(t, s.Remove(t.Context(), digests[0], nil))
	if root, err := s.Resolve(t.Context(), r.host+"/three:1", Need{}); err != nil {
		t.Errorf("with one image went another of the same files: %v", err)
	} else {
		fsck(t, root.Image)
	}
	for _, bad := range []string{"host", "", "Bad"} {
		if err := s.Remove(t.Context(), bad, nil); !errors.Is(err, api.ErrInvalid) {
			t.Errorf("%q: %v", bad, err)
		}
	}
	pruned := func(s *Store, most int64, dry bool, inUse ...string) []string {
		t.Helper()
		before, err := s.Usage()
		must(t, err)
		got, err := s.Prune(t.Context(), PruneOptions{MaxBytes: most, InUse: inUse, DryRun: dry})
		must(t, err)
		after, err := s.Usage()
		must(t, err)
		if !dry && (after != got.UsedBytes || before-after != got.FreedBytes) || dry && after != before {
			t.Errorf("%+v, and it occupies %d, before %d", got, after, before)
		}
		names := []string{}
		for _, img := range got.Removed {
			names = append(names, img.Name)
		}
		return names
	}
	if gone := pruned(s, 1<<40, false); len(gone) != 0 {
		t.Errorf("pruned %v", gone)
	}
	if gone := pruned(s, 0, true); len(gone) != 2 {
		t.Errorf("would prune %v", gone)
	}
	// A sandbox is being made of three:1; two:1 is used by one.
	three, _, _ := s.Look(r.host + "/three:1")
	release := s.Hold(three.Digest)
	err = s.Remove(t.Context(), r.host+"/three:1", nil)
	wantError(t, err, api.CodeConflict, false, "in use")
	if gone := pruned(s, 0, false, digests[2]); len(gone) != 0 {
		t.Errorf("pruned %v", gone)
	}
	release()
	release()
	if blobs, _ := os.ReadDir(s.oci.at("blobs")); len(blobs) != 0 {
		t.Errorf("%d layers are kept", len(blobs))
	}
	later := openStore(t, s.dir)
	if gone := pruned(later, 0, false, digests[2]); len(gone) != 1 || gone[0] != r.host+"/three:1" {
		t.Errorf("pruned %v", gone)
	}
	pruned(later, 0, false)
	nothingVisible(t, later)
	if l := s.List(); len(l) != 1 {
		t.Errorf("another store still lists %+v", l)
	}
}

func TestPruneTakesTheLongestUnused(t *testing.T) {
	s := images(t)
	var files []string
	for i, n := range []string{"a", "b", "c"} {
		_, err := s.ImportStream(t.Context(), n, bytes.NewReader(layerTar(t, file{name: "x", body: noiseOf(byte(i))})), ImportOptions{})
		must(t, err)
		r, _, err := s.find(n)
		must(t, err)
		files = append(files, s.oci.at("roots", r.Root))
	}
	for i, age := range []int{2, 3, 1} {
		at := timeAgo(age)
		must(t, os.Chtimes(files[i], at, at))
	}
	used, err := s.Usage()
	must(t, err)
	gone, err := s.Prune(t.Context(), PruneOptions{MaxBytes: used - 1})
	if err != nil || len(gone.Removed) != 1 || gone.Removed[0].Name != "b:latest" {
		t.Errorf("pruned %+v, %v", gone, err)
	}
	if img, err := s.Inspect("a"); err != nil || img.UsedAt == nil || !img.UsedAt.Equal(timeOf(t, files[0])) {
		t.Errorf("inspect: %+v, %v", img, err)
	}
	if img, err := s.Inspect("host"); err != nil || img.Name != "host" {
		t.Errorf("inspect: %+v, %v", img, err)
	}
}

func TestFilesOfAKilledProcessAreSwept(t *testing.T) {
	s := images(t)
	put(t, s.oci.dir, "temp/root-left", "by a killed process", 0o600)
	mine, err := s.oci.temp("root-")
	must(t, err)
	defer mine.Close()
	put(t, s.oci.dir, "roots/"+strings.Repeat("a", 64)+".erofs", "whose record was never written", 0o600)
	for _, path := range []string{s.oci.at("temp/root-left"), mine.Name(), s.oci.at("roots", strings.Repeat("a", 64)+".erofs")} {
		at := timeAgo(2)
		must(t, os.Chtimes(path, at, at))
	}
	_, err = s.Prune(t.Context(), PruneOptions{MaxBytes: 1 << 40})
	must(t, err)
	left, _ := os.ReadDir(s.oci.at("temp"))
	if len(left) != 1 || s.oci.at("temp", left[0].Name()) != mine.Name() {
		t.Errorf("left %v", left)
	}
	if roots, _ := os.ReadDir(s.oci.at("roots")); len(roots) != 0 {
		t.Errorf("left %v", roots)
	}
}

// TestHostSweepSparesImages: what was pulled goes by Prune only.
func TestHostSweepSparesImages(t *testing.T) {
	s := images(t)
	_, err := s.ImportStream(t.Context(), "a", bytes.NewReader(layerTar(t, file{name: "x", body: "y"})), ImportOptions{})
	must(t, err)
	_, err = s.Sweep(t.Context(), nil, 0)
	must(t, err)
	_, err = s.Resolve(t.Context(), "a", Need{})
	must(t, err)
}

func TestDamagedRecordsAreNotBelieved(t *testing.T) {
	s := images(t)
	img, err := s.ImportStream(t.Context(), "a", bytes.NewReader(layerTar(t, file{name: "x", body: "y"})), ImportOptions{})
	must(t, err)
	for what, damage := range map[string]func(){
		"record": func() {
			must(t, os.WriteFile(s.oci.recordPath(img.Digest), []byte(`{"version":1,"digest":"`+img.Digest+`","root":"../../../etc/passwd"}`), 0o600))
		},
		"no json": func() { must(t, os.WriteFile(s.oci.recordPath(img.Digest), []byte(`{`), 0o600)) },
	} {
		damage()
		if _, err := openStore(t, s.dir).Resolve(t.Context(), "a", Need{}); !errors.Is(err, api.ErrNotFound) {
			t.Errorf("%s: %v", what, err)
		}
	}
	_, err = openStore(t, s.dir).ImportStream(t.Context(), "a", bytes.NewReader(layerTar(t, file{name: "x", body: "y"})), ImportOptions{})
	must(t, err)
	if _, err := openStore(t, s.dir).Resolve(t.Context(), "a", Need{}); err != nil {
		t.Error(err)
	}
}

func TestImportIsBounded(t *testing.T) {
	bomb := gzipped(t, layerTar(t, file{name: "zeros", body: strings.Repeat("\x00", 3<<20)}))
	for _, l := range []archive.Limits{{Bytes: 1 << 20}, {Ratio: 10, RatioFrom: 1 << 20}} {
		s := images(t)
		_, err := s.assemble(t.Context(), []layerSource{{open: opened(bomb)}}, l, nil, func() {})
		wantError(t, err, api.CodeTooLarge, false)
		nothingVisible(t, s)
	}
	_, err := images(t).Import(t.Context(), "x", write(t, bomb), ImportOptions{Limits: archive.Limits{Bytes: 1 << 20}})
	wantError(t, err, api.CodeTooLarge, false)
}

func BenchmarkResolveImage(b *testing.B) {
	s := images(b)
	_, err := s.ImportStream(b.Context(), "a", bytes.NewReader(layerTar(b, file{name: "x", body: "y"})), ImportOptions{})
	must(b, err)
	for b.Loop() {
		_, err := s.Resolve(b.Context(), "a", Need{MountPoints: []string{"/workspace"}})
		must(b, err)
	}
}

func TestBuildBaseRefusals(t *testing.T) {
	s := images(t)
	script := filepath.Join(t.TempDir(), "script")
	must(t, os.WriteFile(script, []byte("text"), 0o755))
	for _, paths := range [][]string{nil, {"relative"}, {"/"}, {"/usr/../etc"}, {"/no/such/program"}, make([]string, maxBasePaths+1)} {
		if _, err := s.BuildBase(t.Context(), "base", paths, ImportOptions{}); !errors.Is(err, api.ErrInvalid) {
			t.Errorf("%.40v: %v", paths, err)
		}
	}
	nothingVisible(t, s)
	img, err := s.BuildBase(t.Context(), "base", []string{script}, ImportOptions{})
	if err != nil || img.Source != "build" {
		t.Errorf("%+v, %v", img, err)
	}
}
