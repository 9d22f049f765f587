//go:build linux

package fsop

import (
	"bytes"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/agent/guest/identity"
	"github.com/cloche-dev/cloche/internal/agent/guest/pathwalk"
	"github.com/cloche-dev/cloche/internal/archive"
	"github.com/cloche-dev/cloche/internal/archive/pack"
)

// TestRecoveryLeavesTheLiving: neither an import that holds its lock nor one whose
// directory was renewed just now is touched.
func TestRecoveryLeavesTheLiving(t *testing.T) {
	c := swapCases()[0]
	target, want := fillTarget(t), fillTarget(t)
	steps := 0
	err := importInto(t, target, c, func() error {
		steps++
		before := looksLike(t, target)
		if err := recoverIn(t, target, never); err != nil {
			t.Fatal(err)
		}
		wantTree(t, target, before)
		return nil
	})
	if err := errors.Join(err, importInto(t, want, c, nil)); err != nil || steps < 10 {
		t.Fatal(steps, err)
	}
	wantTree(t, target, looksLike(t, want))

	before := looksLike(t, fillTarget(t))
	for n := 1; !stopHere(c)(t, target, n); n++ {
		if now := looksLike(t, target); len(stagingsIn(t, target)) == 0 || now == before {
			t.Fatal("nothing is on its way")
		}
		now := looksLike(t, target)
		r := recovery{openTarget(t, target), asSelf, never, time.Now()}
		if err := r.run(); err != nil {
			t.Fatal(err)
		}
		wantTree(t, target, now)
		target = fillTarget(t)
	}
}

// TestImportsRenewTheirDirectories: what a recovery goes by on another kernel.
func TestImportsRenewTheirDirectories(t *testing.T) {
	target := fillTarget(t)
	g, err := makeStaging(openTarget(t, target), never)
	if err != nil {
		t.Fatal(err)
	}
	defer g.dir.Close()
	if err := os.Chtimes(target+"/"+g.name, time.Time{}, time.Unix(1000, 0)); err != nil {
		t.Fatal(err)
	}
	defer g.beat()()
	for end := time.Now().Add(time.Minute); ; time.Sleep(10 * time.Millisecond) {
		info, err := os.Stat(target + "/" + g.name)
		if err != nil || time.Now().After(end) {
			t.Fatal("it was not renewed", err)
		}
		if time.Since(info.ModTime()) < deadAfter {
			return
		}
	}
}

// stopMoved stops an import when all is in place and nothing is committed.
func stopMoved(t *testing.T, c swapCase) (target, staging string) {
	t.Helper()
	last := 0
	for n := 1; ; n++ {
		target = fillTarget(t)
		if stopHere(c)(t, target, n) {
			t.Fatal("it was never committed")
		}
		staging = stagingsIn(t, target)[0]
		if _, err := os.Lstat(staging + "/" + committedName); err == nil {
			break
		}
		last = n
	}
	target = fillTarget(t)
	stopHere(c)(t, target, last)
	return target, stagingsIn(t, target)[0]
}

// TestRecoveryReplacesNothing: what was changed or made after the kill stays, and what
// it is in the place of is kept, for good.
func TestRecoveryReplacesNothing(t *testing.T) {
	c := swapCases()[0]
	target, staging := stopMoved(t, c)
	before := looksLike(t, fillTarget(t))
	for name, content := range map[string]string{"f": "edited", "n/added": "added"} {
		if err := os.WriteFile(target+"/"+name, []byte(content), 0o640); err != nil {
			t.Fatal(err)
		}
	}
	check := func() {
		t.Helper()
		var got [3]string
		for i, name := range []string{target + "/f", target + "/n/added", staging + "/old/f"} {
			b, err := os.ReadFile(name)
			if err != nil {
				t.Fatal(err)
			}
			got[i] = string(b)
		}
		if got != [3]string{"edited", "added", "old"} {
			t.Errorf("got %q", got)
		}
	}
	for range 2 {
		if err := recoverIn(t, target, never); err != nil {
			t.Fatal(err)
		}
		check()
	}
	if left, err := os.ReadDir(staging); err != nil || len(left) != 1 {
		t.Errorf("in the directory are %v, %v", left, err)
	}
	// All else is as it was.
	if err := errors.Join(os.Rename(staging+"/old/f", target+"/f"), os.RemoveAll(target+"/n")); err != nil {
		t.Fatal(err)
	}
	if err := recoverIn(t, target, never); err != nil {
		t.Fatal(err)
	}
	wantTree(t, target, before)
}

// TestRecoveryNeedsWhatWasReplaced: a name that replaced another one is not taken away
// when there is nothing to put in its place, as when a user has put it back by hand.
func TestRecoveryNeedsWhatWasReplaced(t *testing.T) {
	target, staging := stopMoved(t, swapCases()[3])
	must(t, os.Rename(staging+"/old/same", target+"/same"), recoverIn(t, target, never))
	wantTree(t, target, looksLike(t, fillTarget(t)))
}

// TestClearLeavesOtherImports: it does not remove what a killed one has left in old/.
func TestClearLeavesOtherImports(t *testing.T) {
	target, staging := stopMoved(t, swapCases()[0])
	if err := importInto(t, target, swapCases()[1], nil); err != nil {
		t.Fatal(err)
	}
	if b, err := os.ReadFile(staging + "/old/f"); err != nil || string(b) != "old" {
		t.Errorf("%q, %v", b, err)
	}
}

// TestImportThatCannotBeTakenBack: what it has replaced stays, and the error says where.
func TestImportThatCannotBeTakenBack(t *testing.T) {
	c := swapCases()[0]
	target := fillTarget(t)
	var staging string
	err := importInto(t, target, c, func() error {
		if found := stagingsIn(t, target); len(found) == 1 {
			staging = found[0]
		}
		if _, err := os.Lstat(staging + "/old/f"); err != nil {
			return nil
		}
		// A program makes another file where f was, each time it is gone.
		return os.WriteFile(target+"/f", []byte("a program's"), 0o600)
	})
	e, ok := errors.AsType[*api.Error](err)
	if !ok || !strings.Contains(e.Hint, filepath.Base(staging)+"/old") {
		t.Fatalf("%v, %+v", err, e)
	}
	for name, want := range map[string]string{target + "/f": "a program's", staging + "/old/f": "old"} {
		if b, err := os.ReadFile(name); err != nil || string(b) != want {
			t.Errorf("%s has %q, %v", name, b, err)
		}
	}
}

// TestForgedJournal: what no import has made is left alone.
func TestForgedJournal(t *testing.T) {
	moved := func(names ...string) func(t *testing.T, staging string) {
		return func(t *testing.T, staging string) {
			plan := make([]renaming, len(names))
			for i, name := range names {
				plan[i] = renaming{name: name}
			}
			writeJournal(t, staging, plan)
		}
	}
	journal := func(staging string) string { return staging + "/" + journalName }
	for name, forge := range map[string]func(t *testing.T, staging string){
		"upwards":           moved("../x"),
		"upwards in it":     moved("a/../../x"),
		"absolute":          moved("/x"),
		"not clean":         moved("a//b"),
		"empty":             moved(""),
		"the directory":     moved("."),
		"a NUL":             moved("a\x00"),
		"too deep":          moved(strings.Repeat("d/", pack.MaxDepth) + "f"),
		"too long a name":   moved(strings.Repeat("n", 256)),
		"an import's":       moved(archive.ImportPrefix + strings.Repeat("0b", 16) + "/old/f"),
		"one good, one not": moved("g", "../x"),
		"another directory": func(t *testing.T, staging string) { moved("g")(t, staging); must(t, os.Chmod(staging, 0o750)) },
		"a symlink": func(t *testing.T, staging string) {
			moved("g")(t, staging)
			must(t, os.Rename(journal(staging), staging+"/j"), os.Symlink("j", journal(staging)))
		},
		"two names": func(t *testing.T, staging string) {
			moved("g")(t, staging)
			must(t, os.Link(journal(staging), staging+"/j"))
		},
		"huge": func(t *testing.T, staging string) {
			must(t, os.WriteFile(journal(staging), nil, 0o600), os.Truncate(journal(staging), maxJournal+1))
		},
		"a FIFO":        func(t *testing.T, staging string) { must(t, unix.Mkfifo(journal(staging), 0o600)) },
		"a wrong count": func(t *testing.T, staging string) { must(t, os.WriteFile(journal(staging), miscounted(t), 0o600)) },
		"another user's": func(t *testing.T, staging string) {
			moved("g")(t, staging)
			needRoot(t)
			must(t, os.Chown(journal(staging), 4321, 0))
		},
		"old is a symlink": func(t *testing.T, staging string) {
			moved("outside")(t, staging)
			must(t, os.RemoveAll(staging+"/old"), os.Symlink("../..", staging+"/old"))
		},
		"a symlink to it": func(t *testing.T, staging string) {
			moved("g")(t, staging)
			must(t, os.Rename(staging, staging+"x"), os.Symlink(staging+"x", staging))
		},
		"a name's own limit": moved(strings.Repeat("n/", 3) + strings.Repeat("n", 256)),
	} {
		t.Run(name, func(t *testing.T) {
			target := fillTarget(t)
			staging := target + "/" + archive.ImportPrefix + strings.Repeat("0a", 16)
			must(t, os.MkdirAll(staging+"/old", 0o700), os.Mkdir(staging+"/new", 0o700), os.WriteFile(staging+"/old/g", []byte("old"), 0o600), os.WriteFile(filepath.Dir(target)+"/outside", nil, 0o600))
			forge(t, staging)
			before := looksLike(t, filepath.Dir(target))
			if err := recoverIn(t, target, never); err != nil {
				t.Fatal(err)
			}
			wantTree(t, filepath.Dir(target), before)
		})
	}
}

// TestRecoveryFollowsNoSymlink: none in the target, and none in new/ and old/.
func TestRecoveryFollowsNoSymlink(t *testing.T) {
	target := fillTarget(t)
	outside := filepath.Dir(target) + "/outside"
	staging := target + "/" + archive.ImportPrefix + strings.Repeat("0a", 16)
	must(t, os.Mkdir(outside, 0o700), os.WriteFile(outside+"/x", []byte("x"), 0o600), os.MkdirAll(staging+"/old/to", 0o700), os.MkdirAll(staging+"/new/to", 0o700))
	must(t, os.WriteFile(staging+"/old/to/moved", nil, 0o600))
	for _, link := range []string{target + "/to", target + "/from", staging + "/old/from", staging + "/new/from"} {
		must(t, os.Symlink(outside, link))
	}
	must(t, os.Mkdir(target+"/real", 0o700), os.Symlink(outside, staging+"/old/real"))
	look, err := lookOf(&pathwalk.DirWalk{Top: openTarget(t, outside)}, "x", nil)
	must(t, err)
	writeJournal(t, staging, []renaming{{name: "to/moved"}, {"to/x", look}, {"from/x", look}, {name: "from/x"}, {name: "real/x"}})
	want := looksLike(t, outside)
	must(t, recoverIn(t, target, never))
	wantTree(t, outside, want)
	if _, err := os.Lstat(staging + "/old/to/moved"); err != nil {
		t.Error(err)
	}
}

func needRoot(t *testing.T) {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("needs root: it changes an owner")
	}
}

// miscounted is a journal whose last line does not count its moves.
func miscounted(t *testing.T) []byte {
	t.Helper()
	b, err := encodeJournal([]renaming{{name: "g"}})
	must(t, err)
	return bytes.Replace(b, []byte(`"moves":1`), []byte(`"moves":2`), 1)
}

// TestRecoveryHasTheOwnersRights: a directory that a user's program forged moves nothing
// that the program could not move itself.
func TestRecoveryHasTheOwnersRights(t *testing.T) {
	needRoot(t)
	fo := &Files{id: identity.Identity{Privileged: true, UserNS: -1}, users: &identity.Users{}}
	for owner, want := range map[int]bool{4321: true, 0: false} {
		// Not below a directory of the test, which is closed to others.
		target, err := os.MkdirTemp("", "cloche-recovery-")
		must(t, err)
		t.Cleanup(func() { os.RemoveAll(target) })
		staging := target + "/" + archive.ImportPrefix + strings.Repeat("0c", 16)
		must(t, os.Chmod(target, 0o777), os.Mkdir(target+"/closed", 0o755), os.WriteFile(target+"/closed/f", []byte("root's"), 0o644))
		must(t, os.MkdirAll(staging+"/new/closed", 0o700), os.Mkdir(staging+"/old", 0o700))
		look, err := lookOf(&pathwalk.DirWalk{Top: openTarget(t, target)}, "closed/f", nil)
		must(t, err)
		writeJournal(t, staging, []renaming{{"closed/f", look}})
		must(t, filepath.WalkDir(staging, func(name string, _ fs.DirEntry, _ error) error { return os.Lchown(name, owner, 0) }))
		must(t, os.Chtimes(staging, time.Time{}, time.Unix(1000, 0)))
		recoverImports(openTarget(t, target), fo.asOwner)
		if _, err := os.Lstat(target + "/closed/f"); (err == nil) != want {
			t.Errorf("a directory of %d: root's file is there: %v", owner, err == nil)
		}
		if left := stagingsIn(t, target); len(left) != 0 {
			t.Errorf("a directory of %d: %v is left", owner, left)
		}
	}
}
