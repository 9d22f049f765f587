package image

import (
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/archive"
)

// TestRecordsThatAreGone: an image whose record or root filesystem went, by another
// process too, is not here any more.
func TestRecordsThatAreGone(t *testing.T) {
	for what, lose := range map[string]func(s *Store, r imageRecord) error{
		"the record":          func(s *Store, r imageRecord) error { return os.Remove(s.oci.recordPath(r.Digest)) },
		"the root filesystem": func(s *Store, r imageRecord) error { return os.Remove(s.oci.at("roots", r.Root)) },
		"part of the root": func(s *Store, r imageRecord) error {
			// A root is read-only: only root may truncate it as it is.
			return errors.Join(os.Chmod(s.oci.at("roots", r.Root), 0o600), os.Truncate(s.oci.at("roots", r.Root), r.Size-1))
		},
		"what was a file is a link": func(s *Store, r imageRecord) error { return replaceByLink(s.oci.at("roots", r.Root)) },
	} {
		t.Run(what, func(t *testing.T) {
			s := images(t)
			img := imported(t, s, "app", "text")
			other := imported(t, s, "other", "other")
			r, ok := s.oci.load(img.Digest)
			if !ok {
				t.Fatal("it is not here")
			}
			must(t, lose(s, r))
			for _, store := range []*Store{s, openStore(t, s.dir)} {
				if _, ok := store.oci.load(img.Digest); ok {
					t.Error("it is still here")
				}
				if _, err := store.Inspect("app"); !errors.Is(err, api.ErrNotFound) {
					t.Errorf("inspect: %v", err)
				}
				_, err := store.Inspect(img.Digest)
				if e := wantError(t, err, api.CodeNotFound, false); e.Field != "image" || !strings.Contains(e.Hint, "NAME@"+img.Digest) {
					t.Errorf("field %q, hint %q", e.Field, e.Hint)
				}
				if ok, err := store.oci.commit(t.Context(), r); err != nil || ok != (what == "the record") {
					t.Errorf("its record is written again: %v, %v", ok, err)
				}
				_ = os.Remove(s.oci.recordPath(r.Digest))
				if l := store.List(); len(l) != 2 || l[1].Digest != other.Digest {
					t.Errorf("images are %+v", l)
				}
				if left, _ := os.ReadDir(s.oci.at("locks")); len(left) != 0 {
					t.Errorf("locks are left: %v", left)
				}
			}
		})
	}
}

func replaceByLink(path string) error {
	return errors.Join(os.Rename(path, path+".real"), os.Symlink(path+".real", path))
}

// TestOtherFilesAmongRecords: a file with another name than a record has is ignored.
func TestOtherFilesAmongRecords(t *testing.T) {
	s := images(t)
	img := imported(t, s, "app", "text")
	record, err := os.ReadFile(s.oci.recordPath(img.Digest))
	must(t, err)
	for _, name := range []string{"x.json", hexOf(img.Digest), hexOf(img.Digest) + ".json.old"} {
		put(t, s.oci.dir, "images/"+name, string(record), 0o600)
	}
	if all, err := s.oci.all(); err != nil || len(all) != 1 || all[img.Digest].Digest != img.Digest {
		t.Errorf("records are %v, %v", all, err)
	}
	if bad := s.Unreadable(); len(bad) != 0 {
		t.Errorf("unreadable are %q", bad)
	}
}

// TestNamesOfImages: an image is found by each of its names, and by a digest under its
// repository alone.
func TestNamesOfImages(t *testing.T) {
	s := images(t)
	img := imported(t, s, "app:1", "text")
	must(t, s.oci.edit(t.Context(), func(n names) {
		n["docker.io/library/app2@"+img.Digest] = img.Digest
		n["docker.io/library/zz:1"] = img.Digest
		n["docker.io/library/aa:1"] = img.Digest
	}))
	for ref, here := range map[string]bool{
		"app:1": true, "zz:1": true, "app:2": false, "app": false, "app@" + img.Digest: true, "app:9@" + img.Digest: true,
		"app2@" + img.Digest: true, "ap@" + img.Digest: false, "app@sha256:" + strings.Repeat("a", 64): false,
	} {
		if _, err := s.Inspect(ref); (err == nil) != here || err != nil && !errors.Is(err, api.ErrNotFound) {
			t.Errorf("%s: %v", ref, err)
		}
	}
	if got, err := s.Inspect(img.Digest); err != nil || got.Name != "aa:1" {
		t.Errorf("by its digest it is %q, %v", got.Name, err)
	}
	if got := s.Names(img.Digest); strings.Join(got, " ") != "aa:1 app2@"+img.Digest+" app:1 zz:1" {
		t.Errorf("its names are %q", got)
	}
	// What changes nothing writes nothing.
	before := timeOf(t, s.oci.at(namesFile))
	must(t, os.Chtimes(s.oci.at(namesFile), timeAgo(1), timeAgo(1)))
	must(t, s.oci.edit(t.Context(), func(n names) { n["docker.io/library/zz:1"] = img.Digest }))
	if at := timeOf(t, s.oci.at(namesFile)); !at.Before(before) {
		t.Error("the names were written though none changed")
	}
	// A name that is removed by its digest takes no other.
	must(t, s.Remove(t.Context(), "zz:1", []string{img.Digest}))
	if _, err := s.Inspect("zz:1"); !errors.Is(err, api.ErrNotFound) {
		t.Errorf("a name that was removed: %v", err)
	}
	// By its repository and digest the image goes, with all its names.
	wantError(t, s.Remove(t.Context(), "app@"+img.Digest, []string{img.Digest}), api.CodeConflict, false)
	must(t, s.Remove(t.Context(), "app@"+img.Digest, nil))
	if l := s.List(); len(l) != 1 {
		t.Errorf("left are %+v", l)
	}
	if table, err := s.oci.table(); err != nil || len(table) != 0 {
		t.Errorf("names are left: %v, %v", table, err)
	}
	nothingVisible(t, s)
}

// TestHeldImages: an image is held until each that holds it lets go, once.
func TestHeldImages(t *testing.T) {
	s := images(t)
	img := imported(t, s, "app", "text")
	one, two := s.Hold(img.Digest), s.Hold(img.Digest)
	one()
	one()
	wantError(t, s.Remove(t.Context(), "app", nil), api.CodeConflict, false)
	two()
	if len(s.oci.held) != 0 {
		t.Errorf("held are %v", s.oci.held)
	}
	must(t, s.Remove(t.Context(), "app", nil))
}

// TestTemporaryFilesAreSwept: a temporary file goes when it is old and no process has it.
func TestTemporaryFilesAreSwept(t *testing.T) {
	s := images(t)
	mine, err := s.oci.temp("x-")
	must(t, err)
	defer mine.Close()
	old := time.Now().Add(-time.Minute - time.Second)
	put(t, s.oci.dir, "temp/young", "", 0o600)
	put(t, s.oci.dir, "temp/old", "", 0o600)
	must(t, os.Mkdir(s.oci.at("temp", "dir"), 0o700))
	for _, name := range []string{"temp/old", "temp/dir", "temp/" + filepath.Base(mine.Name())} {
		must(t, os.Chtimes(s.oci.at(name), old, old))
	}
	young := time.Now().Add(-50 * time.Second)
	must(t, os.Chtimes(s.oci.at("temp/young"), young, young))
	s.oci.sweepTemps()
	want := []string{"dir", filepath.Base(mine.Name()), "young"}
	slices.Sort(want)
	var got []string
	left, _ := os.ReadDir(s.oci.at("temp"))
	for _, e := range left {
		got = append(got, e.Name())
	}
	if !slices.Equal(got, want) {
		t.Errorf("left are %q, want %q", got, want)
	}
	// A record that cannot be put in place leaves none.
	if err := s.oci.writeJSON(s.oci.at("nowhere/x.json"), names{}); err == nil {
		t.Error("a record was written to a directory that is not there")
	}
	if left, _ := os.ReadDir(s.oci.at("temp")); len(left) != len(want) {
		t.Errorf("left are %v", left)
	}
}

// TestRootsAreSweptWhenTheyAreOld: a root filesystem without an image goes after an hour.
func TestRootsAreSweptWhenTheyAreOld(t *testing.T) {
	s := images(t)
	imported(t, s, "app", "text")
	owned, err := os.ReadDir(s.oci.at("roots"))
	must(t, err)
	must(t, os.Chtimes(s.oci.at("roots", owned[0].Name()), timeAgo(5), timeAgo(5)))
	for name, age := range map[string]time.Duration{"young": 59 * time.Minute, "old": 61 * time.Minute} {
		put(t, s.oci.dir, "roots/"+name, "", 0o600)
		at := time.Now().Add(-age)
		must(t, os.Chtimes(s.oci.at("roots", name), at, at))
	}
	s.sweepRoots()
	left, err := os.ReadDir(s.oci.at("roots"))
	must(t, err)
	if len(left) != 2 || left[0].Name() != owned[0].Name() || left[1].Name() != "young" {
		t.Errorf("left are %v", left)
	}
}

// TestLocksOfImages: a lock is held by one at a time, waited for as long as its caller
// waits, and leaves no file.
func TestLocksOfImages(t *testing.T) {
	s := images(t)
	if s.oci.busy("x") {
		t.Error("a lock that no one ever had is busy")
	}
	unlock, err := s.oci.lock(t.Context(), "x")
	must(t, err)
	if !s.oci.busy("x") {
		t.Error("a lock that is held is not busy")
	}
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Millisecond)
	defer cancel()
	if _, err := s.oci.lock(ctx, "x"); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("a second holder: %v", err)
	}
	before := openFiles(t)
	ctx, cancel = context.WithTimeout(t.Context(), 30*time.Millisecond)
	defer cancel()
	_, _ = s.oci.lock(ctx, "x")
	if now := openFiles(t); now > before {
		t.Errorf("%d files are open, before %d", now, before)
	}
	got := make(chan func(), 1)
	go func() {
		unlock, err := s.oci.lock(context.WithoutCancel(t.Context()), "x")
		if err == nil {
			got <- unlock
		}
	}()
	time.Sleep(5 * time.Millisecond)
	unlock() // removes the file that the other waits for
	second := <-got
	if !s.oci.busy("x") {
		t.Error("the lock that is waited for is not busy then")
	}
	second()
	if left, _ := os.ReadDir(s.oci.at("locks")); len(left) != 0 {
		t.Errorf("left are %v", left)
	}
}

func openFiles(t *testing.T) int {
	t.Helper()
	fds, err := os.ReadDir("/proc/self/fd")
	must(t, err)
	return len(fds)
}

// TestPruneOfLayers: the layers that were not used for the longest time go first, until
// what is left is small enough, except those that are being fetched.
func TestPruneOfLayers(t *testing.T) {
	s := images(t)
	names := []string{strings.Repeat("c", 64), strings.Repeat("a", 64), strings.Repeat("b", 64) + partSuffix}
	for i, name := range names {
		put(t, s.oci.dir, "blobs/"+name, strings.Repeat("x", 40960), 0o600)
		must(t, os.Chtimes(s.oci.at("blobs", name), timeAgo(5-i), timeAgo(5-i)))
	}
	used, err := s.Usage()
	must(t, err)
	if used < 3*40960 {
		t.Fatalf("%d bytes are used", used)
	}
	each := used / 3
	left := func() (all []string) {
		entries, _ := os.ReadDir(s.oci.at("blobs"))
		for _, e := range entries {
			all = append(all, e.Name())
		}
		return all
	}
	got, err := s.Prune(t.Context(), PruneOptions{MaxBytes: used})
	if err != nil || got.UsedBytes != used || got.FreedBytes != 0 || len(left()) != 3 {
		t.Errorf("nothing was to go: %+v, %v, left %q", got, err, left())
	}
	got, err = s.Prune(t.Context(), PruneOptions{MaxBytes: 2 * each, DryRun: true})
	if err != nil || got.UsedBytes != 2*each || got.FreedBytes != each || len(left()) != 3 {
		t.Errorf("would free %+v, %v, left %q", got, err, left())
	}
	got, err = s.Prune(t.Context(), PruneOptions{MaxBytes: 2 * each})
	if err != nil || got.UsedBytes != 2*each || got.FreedBytes != each || !slices.Equal(left(), []string{names[1], names[2]}) {
		t.Errorf("freed %+v, %v, left %q", got, err, left())
	}
	f, err := lockFile(t.Context(), s.oci.at("blobs", names[2]))
	must(t, err)
	got, err = s.Prune(t.Context(), PruneOptions{})
	if err != nil || got.UsedBytes != each || !slices.Equal(left(), names[2:]) {
		t.Errorf("freed %+v, %v, left %q", got, err, left())
	}
	f.Close()
	if got, err = s.Prune(t.Context(), PruneOptions{}); err != nil || got.UsedBytes != 0 || len(left()) != 0 {
		t.Errorf("freed %+v, %v, left %q", got, err, left())
	}
}

// TestPruneOfSharedRoots: images of the same layers occupy the disk once, also in what a
// prune without effect says.
func TestPruneOfSharedRoots(t *testing.T) {
	s := images(t)
	raw := layerTar(t, file{name: "x", body: noiseOf(1)})
	for _, user := range []string{"1", "2"} {
		_, err := s.ImportStream(t.Context(), "app:"+user, bytes.NewReader(raw), ImportOptions{Config: api.ImageConfig{User: user}})
		must(t, err)
	}
	before, err := s.Usage()
	must(t, err)
	got, err := s.Prune(t.Context(), PruneOptions{DryRun: true})
	must(t, err)
	disk := got.Removed[0].SizeBytes
	if len(got.Removed) != 2 || got.FreedBytes != disk || got.UsedBytes != before-disk || disk < 600_000 {
		t.Errorf("it would remove %d images and free %d bytes, want %d", len(got.Removed), got.FreedBytes, disk)
	}
	if l := s.List(); len(l) != 3 {
		t.Errorf("images are %+v", l)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := s.Prune(ctx, PruneOptions{}); !errors.Is(err, context.Canceled) {
		t.Errorf("a prune whose caller left: %v", err)
	}
	unlock, err := s.oci.lock(t.Context(), hexOf(got.Removed[0].Digest))
	must(t, err)
	real, err := s.Prune(t.Context(), PruneOptions{})
	if err != nil || len(real.Removed) != 1 || real.Removed[0].Digest != got.Removed[1].Digest || real.UsedBytes < disk {
		t.Errorf("with one image that is being made, pruned are %+v, %v", real, err)
	}
	unlock()
	real, err = s.Prune(t.Context(), PruneOptions{})
	if err != nil || len(real.Removed) != 1 || real.UsedBytes != 0 {
		t.Errorf("pruned are %+v, %v", real, err)
	}
}

// TestContentIsPlaced: content stands in whole blocks of its own, without its zeros.
func TestContentIsPlaced(t *testing.T) {
	f, err := os.Create(filepath.Join(t.TempDir(), "image"))
	must(t, err)
	defer f.Close()
	c := &contents{f: f}
	c.next.Store(1)
	for size, want := range map[int64]int64{0: 0, 1: 1, blockSize: 1, blockSize + 1: 2} {
		first := c.reserve(size)
		if next := c.next.Load(); next-first != want {
			t.Errorf("%d bytes have %d blocks", size, next-first)
		}
	}
	buf := make([]byte, blockSize)
	content := append(append(bytes.Repeat([]byte{0}, blockSize), 0, 7), bytes.Repeat([]byte{0}, blockSize)...)
	must(t, c.write(t.Context(), bytes.NewReader(content), 2, int64(len(content)), buf))
	raw, err := os.ReadFile(f.Name())
	must(t, err)
	if want := append(make([]byte, 3*blockSize), 0, 7); !bytes.Equal(bytes.TrimRight(raw, "\x00"), want) {
		t.Errorf("the file has %d bytes", len(raw))
	}
	var st unix.Stat_t
	must(t, unix.Stat(f.Name(), &st))
	if st.Blocks*512 > 2*blockSize {
		t.Errorf("zeros occupy the disk: %d bytes", st.Blocks*512)
	}
	if err := c.write(t.Context(), strings.NewReader("four"), 9, 6, buf); err == nil || !strings.Contains(err.Error(), "2 bytes early") {
		t.Errorf("content that ends early: %v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := c.write(ctx, strings.NewReader("four"), 9, 4, buf); !errors.Is(err, context.Canceled) {
		t.Errorf("a caller who left: %v", err)
	}
}

// TestTreesOfDirectories: what is a directory of a tree.
func TestTreesOfDirectories(t *testing.T) {
	tr := newTree()
	must(t, tr.dir("a/b", 0o755))
	must(t, tr.text("a/file", 0o644, nil))
	for name, has := range map[string]bool{"": true, "/": true, "a": true, "/a/b/": true, "a//b": true, "a/file": false, "a/file/x": false, "c": false, "a/../a/b": true} {
		if tr.has(name) != has {
			t.Errorf("%q is a directory: %v", name, !has)
		}
	}
}

// TestFollowInAnImage: a path is followed in the image's own file.
func TestFollowInAnImage(t *testing.T) {
	s := images(t)
	root, err := build(t, s, archive.Limits{}, layerTar(t, file{name: "real/", typ: '5'}, file{name: "link", typ: '2', link: "/real"}))
	must(t, err)
	for name, want := range map[string]string{"/link/x": "/real/x", "/real": "/real"} {
		if got, err := (Rootfs{Image: root.path}).Follow(name); err != nil || got != want {
			t.Errorf("%s leads to %q, %v", name, got, err)
		}
	}
	before := openFiles(t)
	if _, err := (Rootfs{Image: root.path + ".none"}).Follow("/x"); err == nil {
		t.Error("an image that is not there is followed")
	}
	put(t, s.dir, "text", "no image", 0o600)
	if _, err := (Rootfs{Image: filepath.Join(s.dir, "text")}).Follow("/x"); err == nil {
		t.Error("a file that is no image is followed")
	}
	if _, err := OpenTree(filepath.Join(s.dir, "text")); err == nil {
		t.Error("a file that is no image is opened")
	}
	if now := openFiles(t); now > before {
		t.Errorf("%d files are open, before %d", now, before)
	}
}
