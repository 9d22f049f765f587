//go:build linux

package fsop

import (
	"archive/tar"
	"bytes"
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/agent/guest/pathwalk"
	"github.com/cloche-dev/cloche/internal/agent/wire"
	"github.com/cloche-dev/cloche/internal/archive"
	"github.com/cloche-dev/cloche/test/longtest"
	"github.com/cloche-dev/cloche/test/tarfile"
)

// swapCase is an import into fillTarget's tree.
type swapCase struct {
	name    string
	options wire.Tar
	members []tarfile.Member
}

func swapCases() []swapCase {
	dir := tarfile.Member{Header: tar.Header{Typeflag: tar.TypeDir, Name: "d/", Mode: 0o750, ModTime: time.Unix(77, 0)}, Content: ""}
	link := tarfile.Member{Header: tar.Header{Typeflag: tar.TypeSymlink, Name: "l", Linkname: "n"}, Content: ""}
	twin := tarfile.Member{Header: tar.Header{Typeflag: tar.TypeLink, Name: "n/twin", Linkname: "n/e/w"}, Content: ""}
	exact := tarfile.Regular("n/exact", "to the nanosecond")
	exact.Format, exact.ModTime = tar.FormatPAX, time.Unix(-5, 999_999_999)
	return []swapCase{
		{"merge", wire.Tar{Atomic: true}, []tarfile.Member{dir, tarfile.Regular("f", "new"), tarfile.Regular("d/sub/s", "s2"), tarfile.Regular("d/sub/t", "t"), tarfile.Regular("n/e/w", "w"), exact, twin, link}},
		{"clear", wire.Tar{Clear: true}, []tarfile.Member{dir, tarfile.Regular("f", "new"), tarfile.Regular("gone", "a file"), tarfile.Regular("d/x", "x")}},
		{"clear and keep", wire.Tar{Clear: true, Keep: []api.Bytes{api.Bytes("keep/in")}}, []tarfile.Member{tarfile.Regular("keep/more", "m"), tarfile.Regular("f", "new")}},
		// What comes looks like what is there already.
		{"the same again", wire.Tar{Atomic: true}, []tarfile.Member{tarfile.Regular("same", "same"), tarfile.Regular("d/sub/s2", "s2")}},
	}
}

// fillTarget makes a target with something in it.
func fillTarget(t testing.TB) string {
	t.Helper()
	top := filepath.Join(t.TempDir(), "t")
	for name, content := range map[string]string{"f": "old", "d/sub/s": "sub", "keep/in/k": "k", "keep/out": "o", "gone/g": "g", "same": "same"} {
		file := filepath.Join(top, name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(file), 0o755), os.WriteFile(file, []byte(content), 0o640), os.Chtimes(file, time.Unix(1000, 0), time.Unix(1000, 0))); err != nil {
			t.Fatal(err)
		}
	}
	if err := errors.Join(os.Symlink("f", top+"/l"), os.Mkdir(top+"/gone/empty", 0o700)); err != nil {
		t.Fatal(err)
	}
	return top
}

// looksLike describes a tree without modes and times of directories.
func looksLike(t testing.TB, top string) string {
	t.Helper()
	var b strings.Builder
	err := filepath.WalkDir(top, func(name string, e fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := e.Info()
		rel, _ := filepath.Rel(top, name)
		switch {
		case err != nil:
			return err
		case e.IsDir():
			fmt.Fprintf(&b, "%s/\n", rel)
		case e.Type() == fs.ModeSymlink:
			to, err := os.Readlink(name)
			fmt.Fprintf(&b, "%s -> %s\n", rel, to)
			return err
		case e.Type().IsRegular() && info.Size() < maxJournal:
			content, err := os.ReadFile(name)
			fmt.Fprintf(&b, "%s %v %d %q\n", rel, info.Mode(), info.ModTime().UnixNano(), content)
			return err
		default:
			fmt.Fprintf(&b, "%s %v %d\n", rel, info.Mode(), info.Size())
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return b.String()
}

// stopAfter stops for good after n steps.
func stopAfter(n int) func() error {
	return func() error {
		if n--; n <= 0 {
			return errStopped
		}
		return nil
	}
}

func openTarget(t testing.TB, name string) *os.File {
	t.Helper()
	d, err := os.Open(name)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { d.Close() })
	return d
}

// importInto imports as the agent does, without a recovery first.
func importInto(t testing.TB, target string, c swapCase, stop func() error) error {
	t.Helper()
	x := &unpacker{
		rules: &pathwalk.Restrictions{}, setMode: pathwalk.SetMode, base: target, options: c.options, buf: make([]byte, 4096), stop: stop,
		budget: archive.NewBudget(archive.Limits{Bytes: 1 << 20, Entries: 1000}),
	}
	defer x.dir.entries.Close()
	defer x.dir.links.Close()
	return x.atomic(openTarget(t, target), tarfile.Pack(t, c.members...))
}

func asSelf(_ uint32, fn func() error) error { return fn() }

// recoverIn ends imports in a target that are long dead, and stops after some steps.
func recoverIn(t testing.TB, target string, stop func() error) error {
	t.Helper()
	for _, name := range stagingsIn(t, target) {
		if err := os.Chtimes(name, time.Time{}, time.Now().Add(-time.Hour)); err != nil {
			t.Fatal(err)
		}
	}
	r := recovery{openTarget(t, target), asSelf, stop, time.Now()}
	return r.run()
}

func stagingsIn(t testing.TB, target string) []string {
	t.Helper()
	found, err := filepath.Glob(target + "/" + archive.ImportPrefix + "*")
	if err != nil {
		t.Fatal(err)
	}
	return found
}

func never() error { return nil }

// eachStop calls fn with a target in which an import was stopped after its first step,
// then with another after the second, and so on, and with what has to be there after a
// recovery.
func eachStop(t *testing.T, c swapCase, stopped func(t *testing.T, target string, n int) (ended bool), fn func(t *testing.T, target, want string)) {
	t.Helper()
	whole := fillTarget(t)
	before := looksLike(t, whole)
	if err := importInto(t, whole, c, nil); err != nil {
		t.Fatal(err)
	}
	after, want, seen := looksLike(t, whole), before, map[string]int{}
	if after == before && c.name != "the same again" || len(stagingsIn(t, whole)) != 0 {
		t.Fatalf("the import has done nothing, or left something:\n%s", after)
	}
	for n := 1; ; n++ {
		target := fillTarget(t)
		if stopped(t, target, n) {
			break
		}
		for _, g := range stagingsIn(t, target) {
			if _, err := os.Lstat(g + "/" + committedName); err == nil {
				want = after
			}
		}
		seen[want]++
		fn(t, target, want)
		if t.Failed() {
			t.Fatalf("that was after step %d", n)
		}
	}
	if seen[before] < 8 || seen[after] < 4 {
		t.Errorf("stopped %d times before the commit and %d times after it", seen[before], seen[after])
	}
}

// stopHere stops an import of this process.
func stopHere(c swapCase) func(*testing.T, string, int) bool {
	return func(t *testing.T, target string, n int) bool {
		var stopped bool
		stop := stopAfter(n)
		err := importInto(t, target, c, func() error {
			err := stop()
			stopped = stopped || err != nil
			return err
		})
		if err != nil && !errors.Is(err, errStopped) {
			t.Fatal(err)
		}
		return !stopped
	}
}

func wantTree(t *testing.T, target, want string) {
	t.Helper()
	if got := looksLike(t, target); got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
}

// TestRecoveryAfterEveryStep: an import that ends at any step is undone, or done, by the
// recovery alone; by one that ends at any step itself, and the next; and the next import
// puts its archive in place.
func TestRecoveryAfterEveryStep(t *testing.T) {
	longtest.Skip(t, "it recovers after each step")
	for _, c := range swapCases() {
		t.Run(c.name, func(t *testing.T) {
			var after string
			eachStop(t, c, stopHere(c), func(t *testing.T, target, want string) {
				after = want
				if err := recoverIn(t, target, never); err != nil {
					t.Fatal(err)
				}
				wantTree(t, target, want)
			})
			eachStop(t, c, stopHere(c), func(t *testing.T, target, _ string) {
				if err := errors.Join(recoverIn(t, target, never), importInto(t, target, c, nil)); err != nil {
					t.Fatal(err)
				}
				wantTree(t, target, after)
			})
		})
	}
}

func TestRecoveryOfRecoveries(t *testing.T) {
	longtest.Skip(t, "it recovers after each step")
	for _, c := range []swapCase{swapCases()[1], swapCases()[3]} {
		t.Run(c.name, func(t *testing.T) {
			for n := 1; ; n++ {
				again := false
				eachStop(t, c, stopHere(c), func(t *testing.T, target, want string) {
					again = recoverIn(t, target, stopAfter(n)) != nil || again
					for _, g := range stagingsIn(t, target) {
						// Else what is missing in new/ would count as moved.
						_, lost := os.Lstat(g + "/" + newName)
						if _, err := os.Lstat(g + "/" + journalName); lost != nil && err == nil {
							t.Error("there is a journal without what it is about")
						}
					}
					if err := recoverIn(t, target, never); err != nil {
						t.Fatal(err)
					}
					wantTree(t, target, want)
				})
				if t.Failed() {
					t.Fatalf("the recovery was stopped after step %d", n)
				}
				if !again {
					break
				}
			}
		})
	}
}

// killVar names, for a child process, the target and the step after which it is killed.
const killVar = "CLOCHE_TEST_KILL_IMPORT"

// TestKilledImport: as TestRecoveryAfterEveryStep, with processes that are killed. That
// they are recovered shows that their locks end with them.
func TestKilledImport(t *testing.T) {
	c := swapCases()[0]
	if spec := os.Getenv(killVar); spec != "" {
		step, target, _ := strings.Cut(spec, " ")
		n, err := strconv.Atoi(step)
		if err != nil {
			t.Fatal(err)
		}
		stop := stopAfter(n)
		if err := importInto(t, target, c, func() error {
			if stop() != nil {
				_ = unix.Kill(os.Getpid(), unix.SIGKILL)
				select {}
			}
			return nil
		}); err != nil {
			t.Fatal(err)
		}
		return
	}
	kill := func(t *testing.T, target string, n int) bool {
		cmd := exec.CommandContext(t.Context(), "/proc/self/exe", "-test.run=^TestKilledImport$")
		cmd.Env = append(os.Environ(), fmt.Sprintf("%s=%d %s", killVar, n, target))
		out, err := cmd.CombinedOutput()
		if err == nil {
			return true
		}
		if status, ok := cmd.ProcessState.Sys().(interface{ Signaled() bool }); !ok || !status.Signaled() {
			t.Fatalf("%v: %s", err, out)
		}
		return false
	}
	eachStop(t, c, kill, func(t *testing.T, target, want string) {
		if err := recoverIn(t, target, never); err != nil {
			t.Fatal(err)
		}
		wantTree(t, target, want)
	})
}

// TestRenameReplacesNothing: also where the kernel cannot look and rename at once.
func TestRenameReplacesNothing(t *testing.T) {
	for name, rename := range map[string]func(src, dst int, base string) error{"at once": (&swap{}).renameNew, "after a look": renameSeen} {
		src, dst := t.TempDir(), t.TempDir()
		from, to := int(openTarget(t, src).Fd()), int(openTarget(t, dst).Fd())
		must(t, os.WriteFile(src+"/f", []byte("moves"), 0o600), os.Symlink("nowhere", dst+"/f"))
		if err := rename(from, to, "f"); !errors.Is(err, unix.EEXIST) {
			t.Errorf("%s: over a name: %v", name, err)
		}
		must(t, os.Remove(dst+"/f"), rename(from, to, "f"))
		if b, err := os.ReadFile(dst + "/f"); err != nil || string(b) != "moves" {
			t.Errorf("%s: %q, %v", name, b, err)
		}
	}
}

// TestTornJournal: whatever part of a journal was written, nothing had moved.
func TestTornJournal(t *testing.T) {
	plan := []renaming{{name: "f"}, {"f", "look"}, {name: "d/sub/s"}, {"d/sub/s", "look"}}
	whole, err := encodeJournal(plan)
	if err != nil {
		t.Fatal(err)
	}
	target := fillTarget(t)
	want := looksLike(t, target)
	staging := target + "/" + archive.ImportPrefix + strings.Repeat("0a", 16)
	for n := range whole {
		for _, torn := range [][]byte{whole[:n], append(bytes.Clone(whole[:n]), make([]byte, len(whole)-n)...)} {
			if _, err := decodeJournal(torn); !errors.Is(err, errTorn) {
				t.Fatalf("%d bytes: %v", n, err)
			}
			if err := errors.Join(os.MkdirAll(staging+"/new/d", 0o700), os.Mkdir(staging+"/old", 0o700), os.WriteFile(staging+"/new/f", []byte("new"), 0o600), os.WriteFile(staging+"/"+journalName, torn, 0o600)); err != nil {
				t.Fatal(err)
			}
			if err := recoverIn(t, target, never); err != nil {
				t.Fatal(err)
			}
			wantTree(t, target, want)
		}
	}
	// With something in old/ nothing is removed, as earlier versions left that without
	// a journal.
	if err := errors.Join(os.MkdirAll(staging+"/old", 0o700), os.WriteFile(staging+"/old/f", []byte("old"), 0o600)); err != nil {
		t.Fatal(err)
	}
	want = looksLike(t, target)
	if err := recoverIn(t, target, never); err != nil {
		t.Fatal(err)
	}
	wantTree(t, target, want)
}

func must(t testing.TB, errs ...error) {
	t.Helper()
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
}

func writeJournal(t *testing.T, staging string, plan []renaming) {
	t.Helper()
	b, err := encodeJournal(plan)
	must(t, err, os.WriteFile(staging+"/"+journalName, b, 0o600))
}

// TestJournalBounds: a plan that could not be read again is refused before anything moves.
func TestJournalBounds(t *testing.T) {
	longtest.Skip(t, "it writes the largest journal")
	many := make([]renaming, maxMoves+1)
	long := make([]renaming, 1<<10)
	for i := range long {
		long[i].name = strings.Repeat("n", maxJournal>>10)
	}
	for _, plan := range [][]renaming{many, long} {
		if _, err := encodeJournal(plan); api.CodeOf(err) != api.CodeTooLarge {
			t.Errorf("%d moves: %v", len(plan), err)
		}
	}
	for i := range many {
		many[i].name = "a"
	}
	b, err := encodeJournal(many[:maxMoves])
	if err != nil {
		t.Fatal(err)
	}
	if plan, err := decodeJournal(b); err != nil || len(plan) != maxMoves {
		t.Errorf("%d moves, %v", len(plan), err)
	}
}

// FuzzJournal decodes arbitrary bytes: what is taken can be moved, and is the same again.
func FuzzJournal(f *testing.F) {
	for _, plan := range [][]renaming{nil, {{name: "f"}, {"f", "look"}}, {{name: "raw\xff"}, {name: "../x"}}} {
		b, err := encodeJournal(plan)
		if err != nil {
			f.Fatal(err)
		}
		lines, _, _ := bytes.Cut(b, []byte(`{"moves"`))
		f.Add(b, true)
		f.Add(lines, false)
	}
	f.Add([]byte(`{"name":"a","name":"b"}`+"\n"), false)
	f.Fuzz(func(t *testing.T, b []byte, whole bool) {
		if !whole {
			b = sealed(b)
		}
		plan, err := decodeJournal(b)
		if err != nil {
			return
		}
		for _, m := range plan {
			if !filepath.IsLocal(m.name) || filepath.Clean(m.name) != m.name || m.name == "." {
				t.Fatalf("it moves %q", m.name)
			}
		}
		again, err := encodeJournal(plan)
		if err != nil {
			t.Fatal(err)
		}
		if same, err := decodeJournal(again); err != nil || !reflect.DeepEqual(same, plan) {
			t.Fatalf("%v became %v, %v", plan, same, err)
		}
	})
}

// sealed ends lines as a journal does.
func sealed(lines []byte) []byte {
	if len(lines) > 0 && !bytes.HasSuffix(lines, []byte("\n")) {
		lines = append(bytes.Clone(lines), '\n')
	}
	return fmt.Appendf(bytes.Clone(lines), `{"moves":%d,"sha256":"%x"}`+"\n", bytes.Count(lines, []byte("\n")), sha256.Sum256(lines))
}
