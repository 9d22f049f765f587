//go:build linux

package guest

import (
	"archive/tar"
	"bytes"
	"errors"
	"io"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/agent/guest/identity"
	"github.com/cloche-dev/cloche/test/tarfile"
)

// picture describes all of a tree: names, modes, owners, times and contents.
const picture = `find . -printf '%p %y %m %U:%G %n %T@ %l\n' | sort; find . -type f | sort | xargs -r -d '\n' cat`

// oldTree fills a directory with what an import finds there.
func oldTree(t testing.TB, in *inside) string {
	t.Helper()
	dir := t.TempDir()
	in.run(t, "cd "+dir+" && mkdir -p t/d/sub t/keep/in t/gone && echo old >t/f && echo sub >t/d/sub/s && ln -s f t/l && ln t/f t/hard && echo k >t/keep/in/k && echo g >t/gone/g && chmod 0700 t/d && touch -d @5000 t/d/sub t/d t/f t/keep t")
	return dir + "/t"
}

// A refused archive leaves the target as it was, whatever is wrong with it and
// wherever in it that is.
func TestAtomicImportRefuses(t *testing.T) {
	in := boot(t, nil)
	first := tarfile.Regular("f", "new")
	link := tarfile.Member{Header: tar.Header{Typeflag: tar.TypeSymlink, Name: "d2", Linkname: "/tmp"}, Content: ""}
	long := tarfile.Regular("f2", "cut off")
	whole := tarfile.Pack(t, first, long).Bytes()
	for name, body := range map[string]io.Reader{
		"absolute":               tarfile.Pack(t, first, tarfile.Regular("/abs", "x")),
		"upwards":                tarfile.Pack(t, first, tarfile.Regular("a/../../x", "x")),
		"below a symlink":        tarfile.Pack(t, first, link, tarfile.Regular("d2/x", "x")),
		"a device":               tarfile.Pack(t, first, tarfile.Member{Header: tar.Header{Typeflag: tar.TypeChar, Name: "null", Devmajor: 1, Devminor: 3}, Content: ""}),
		"a block device":         tarfile.Pack(t, first, tarfile.Member{Header: tar.Header{Typeflag: tar.TypeBlock, Name: "sda", Devmajor: 8}, Content: ""}),
		"two kinds":              tarfile.Pack(t, first, tarfile.Regular("a", "x"), tarfile.Member{Header: tar.Header{Typeflag: tar.TypeDir, Name: "a/"}, Content: ""}),
		"two kinds, other way":   tarfile.Pack(t, first, tarfile.Regular("a/b", "x"), tarfile.Regular("a", "x")),
		"file and symlink":       tarfile.Pack(t, first, link, tarfile.Regular("d2", "x")),
		"hard link out":          tarfile.Pack(t, first, tarfile.Member{Header: tar.Header{Typeflag: tar.TypeLink, Name: "h", Linkname: "../out"}, Content: ""}),
		"hard link to absolute":  tarfile.Pack(t, first, tarfile.Member{Header: tar.Header{Typeflag: tar.TypeLink, Name: "h", Linkname: "/etc/passwd"}, Content: ""}),
		"hard link to nothing":   tarfile.Pack(t, first, tarfile.Member{Header: tar.Header{Typeflag: tar.TypeLink, Name: "h", Linkname: "keep/in/k"}, Content: ""}),
		"hard link by a symlink": tarfile.Pack(t, first, link, tarfile.Member{Header: tar.Header{Typeflag: tar.TypeLink, Name: "h", Linkname: "d2/x"}, Content: ""}),
		"a long name":            tarfile.Pack(t, first, tarfile.Regular(strings.Repeat("n", 256), "x")),
		"too deep":               tarfile.Pack(t, first, tarfile.Regular(strings.Repeat("d/", 600)+"f", "x")),
		"cut in a file":          bytes.NewReader(whole[:len(whole)-1024-510]),
		"cut in a header":        bytes.NewReader(whole[:len(whole)-1024-700]),
		"cut behind a file":      bytes.NewReader(whole[:len(whole)-1024]),
		"cut in the padding":     bytes.NewReader(whole[:len(whole)-1024-100]),
		"no tar":                 strings.NewReader(strings.Repeat("no tar ", 500)),
		"a directory for a file": tarfile.Pack(t, tarfile.Regular("f/x", "x")),
		"a file for a directory": tarfile.Pack(t, tarfile.Regular("d", "x")),
		"an external link":       tarfile.Pack(t, first, link),
	} {
		t.Run(name, func(t *testing.T) {
			target := oldTree(t, in)
			before := in.run(t, "cd "+target+" && "+picture)
			o := api.TarInOptions{Atomic: true}
			if name == "an external link" {
				o.Links = api.LinksReject
			}
			_, err := in.TarIn(t.Context(), target, o, body)
			if code := api.CodeOf(err); code != api.CodeInvalid && code != api.CodeExists && code != api.CodeTooLarge {
				t.Errorf("got %v", err)
			}
			if after := in.run(t, "cd "+target+" && "+picture); after != before {
				t.Errorf("before:\n%s\nafter:\n%s", before, after)
			}
		})
	}
}

func TestAtomicImportMerges(t *testing.T) {
	in := boot(t, nil)
	target := oldTree(t, in)
	rep, err := in.TarIn(t.Context(), target, api.TarInOptions{Atomic: true}, tarfile.Pack(t,
		tarfile.Regular("f", "new"), tarfile.Regular("d/sub/s2", "s2"), tarfile.Member{Header: tar.Header{Typeflag: tar.TypeDir, Name: "d/", Mode: 0o750, ModTime: time.Unix(77, 0)}, Content: ""},
		tarfile.Regular("n/e/w", "w"), tarfile.Member{Header: tar.Header{Typeflag: tar.TypeLink, Name: "n/h", Linkname: "n/e/w"}, Content: ""},
		tarfile.Member{Header: tar.Header{Typeflag: tar.TypeFifo, Name: "fifo"}, Content: ""},
	))
	if err != nil || rep.Entries != 5 || len(rep.Skipped) != 1 || rep.Skipped[0].Path != "fifo" {
		t.Fatalf("%+v, %v", rep, err)
	}
	got := in.run(t, "cd "+target+" && cat f hard d/sub/s d/sub/s2 n/h keep/in/k; stat -c '%a %Y' d; stat -c %h n/e/w; stat -c '%a %Y' f; ls -A")
	want := "newold\nsub\ns2wk\n750 77\n2\n640 1000\nd\nf\ngone\nhard\nkeep\nl\nn"
	if got != want {
		t.Errorf("got %q\nwant %q", got, want)
	}
}

func TestClearingImportKeeps(t *testing.T) {
	in := boot(t, nil)
	target := oldTree(t, in)
	in.run(t, "cd "+target+" && mkdir -p d/mnt && mount -t tmpfs x d/mnt 2>/dev/null && echo m >d/mnt/m || true")
	o := api.TarInOptions{Clear: true, Keep: []string{"keep/in", "no/such"}}
	if _, err := in.TarIn(t.Context(), target, o, tarfile.Pack(t, tarfile.Regular("gone", "now a file"), tarfile.Regular("keep/more", "m"))); err != nil {
		t.Fatal(err)
	}
	if got := in.run(t, "cd "+target+" && find . ! -path './d*' | sort | tr '\\n' ' '; cat gone keep/in/k"); got != ". ./gone ./keep ./keep/in ./keep/in/k ./keep/more now a filek" {
		t.Errorf("got %q", got)
	}
	// A refused one clears nothing.
	before := in.run(t, "cd "+target+" && "+picture)
	if _, err := in.TarIn(t.Context(), target, api.TarInOptions{Clear: true}, tarfile.Pack(t, tarfile.Regular("a", "x"), tarfile.Regular("../x", "x"))); err == nil {
		t.Fatal("it was taken")
	}
	if after := in.run(t, "cd "+target+" && "+picture); after != before {
		t.Errorf("before:\n%s\nafter:\n%s", before, after)
	}
}

// A target that did not exist does not exist after a refusal.
func TestAtomicImportIntoNothing(t *testing.T) {
	in := boot(t, nil)
	dir := t.TempDir()
	_, err := in.TarIn(t.Context(), dir+"/a/b/c", api.TarInOptions{Atomic: true}, tarfile.Pack(t, tarfile.Regular("../x", "x")))
	if api.CodeOf(err) != api.CodeInvalid {
		t.Fatal(err)
	}
	if _, err := os.Lstat(dir + "/a"); !errors.Is(err, os.ErrNotExist) {
		t.Error("directories are left")
	}
}

// The disk is full in the middle: what was there stays.
func TestAtomicImportOnAFullDisk(t *testing.T) {
	in := boot(t, nil)
	dir := t.TempDir()
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "size=1m,nr_inodes=64"); err != nil {
		t.Skipf("needs to mount a small disk: %v", err)
	}
	t.Cleanup(func() { unix.Unmount(dir, unix.MNT_DETACH) })
	// The agent has a mount namespace of its own, into which this mount did not come.
	other := boot(t, nil)
	_ = in
	other.run(t, "cd "+dir+" && echo old >f")
	before := other.run(t, "cd "+dir+" && "+picture)
	many := []tarfile.Member{}
	for i := range 100 {
		many = append(many, tarfile.Regular("d/"+string(rune('a'+i%26))+strings.Repeat("x", i), "x"))
	}
	for name, body := range map[string]*bytes.Buffer{
		"bytes":  tarfile.Pack(t, tarfile.Regular("f", "new"), tarfile.Regular("big", strings.Repeat("0123456789abcdef", 1<<17))),
		"inodes": tarfile.Pack(t, many...),
	} {
		_, err := other.TarIn(t.Context(), dir, api.TarInOptions{Clear: true}, body)
		if api.CodeOf(err) != api.CodeNoCapacity {
			t.Errorf("%s: %v", name, err)
		}
		if after := other.run(t, "cd "+dir+" && "+picture); after != before {
			t.Errorf("%s: before:\n%s\nafter:\n%s", name, before, after)
		}
	}
}

func TestImportOwners(t *testing.T) {
	in := boot(t, nil)
	dir := t.TempDir()
	owned := tarfile.Regular("f", "x")
	owned.Uid, owned.Gid, owned.Mode = 1234, 4321, 0o1755
	sub := tarfile.Member{Header: tar.Header{Typeflag: tar.TypeDir, Name: "d/", Uid: 7, Gid: 8}, Content: ""}
	link := tarfile.Member{Header: tar.Header{Typeflag: tar.TypeSymlink, Name: "l", Linkname: "f", Uid: 9, Gid: 10}, Content: ""}
	for owner, want := range map[string]string{"": "0:0 0:0 0:0 1755", "keep": "1234:4321 7:8 9:10 1755", "55:66": "55:66 55:66 55:66 1755"} {
		target := dir + "/" + strings.ReplaceAll("t"+owner, ":", "-")
		if _, err := in.TarIn(t.Context(), target, api.TarInOptions{Owner: owner, Atomic: owner != ""}, tarfile.Pack(t, sub, owned, link)); err != nil {
			t.Fatal(err)
		}
		if got := in.run(t, "cd "+target+" && echo $(stat -c %u:%g f d l; stat -c %a f)"); got != want {
			t.Errorf("owner %q: %q, want %q", owner, got, want)
		}
	}
	if _, err := in.TarIn(t.Context(), dir, api.TarInOptions{Owner: "nobody-of-that-name"}, tarfile.Pack(t)); api.CodeOf(err) != api.CodeInvalid {
		t.Errorf("an owner that does not exist: %v", err)
	}
	for _, ids := range [][2]int{{identity.AgentID, 0}, {0, identity.AgentID}, {identity.AgentID + 1, 0}, {0, identity.AgentID + 1}} {
		owned.Uid, owned.Gid = ids[0], ids[1]
		if _, err := in.TarIn(t.Context(), dir, api.TarInOptions{Owner: "keep"}, tarfile.Pack(t, owned)); api.CodeOf(err) != api.CodeInvalid {
			t.Errorf("%v as owner and group: %v", ids, err)
		}
	}
}

// TestImportTakesGlobalHeaders: git archive begins with one.
func TestImportTakesGlobalHeaders(t *testing.T) {
	in := boot(t, nil)
	global := tarfile.Member{Header: tar.Header{Typeflag: tar.TypeXGlobalHeader, Name: "pax_global_header", PAXRecords: map[string]string{"comment": "x"}}, Content: ""}
	report, err := in.TarIn(t.Context(), t.TempDir(), api.TarInOptions{Atomic: true}, tarfile.Pack(t, global, tarfile.Regular("f", "x")))
	if err != nil || report.Entries != 1 || len(report.Skipped) != 0 {
		t.Errorf("%+v, %v", report, err)
	}
}

// TestImportNamesSecurityAttributes: what a file would be executed with is not taken, and
// the report says so.
func TestImportNamesSecurityAttributes(t *testing.T) {
	in := boot(t, nil)
	dir := t.TempDir()
	able := tarfile.Regular("f", "x")
	able.Format, able.PAXRecords = tar.FormatPAX, map[string]string{
		"SCHILY.xattr.security.capability": "\x01\x00\x00\x02\x00\x04\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00", "SCHILY.xattr.user.a": "b",
	}
	report, err := in.TarIn(t.Context(), dir, api.TarInOptions{}, tarfile.Pack(t, able))
	if err != nil || report.Entries != 1 {
		t.Fatal(report, err)
	}
	if want := []api.TarSkip{{Path: "f", Reason: `its attribute "security.capability" is not taken`}}; !slices.Equal(report.Skipped, want) {
		t.Errorf("skipped are %v, want %v", report.Skipped, want)
	}
	if n, err := unix.Listxattr(dir+"/f", nil); err != nil || n != 0 {
		t.Errorf("the file has %d bytes of attributes, %v", n, err)
	}
}

// Excludes are literal, and count for all below.
func TestExcludes(t *testing.T) {
	in := boot(t, nil)
	dir := t.TempDir()
	in.run(t, "cd "+dir+" && mkdir -p .git/o a/.git a/b '*' && touch .git/o/x a/.git/y a/b/z a/bc '*/q' top && ln a/b/z zz && ln -s a/b ab")
	exclude := []string{".git", "a/b", "*"}
	var buf bytes.Buffer
	if _, err := in.TarOut(t.Context(), dir, api.TarOutOptions{Exclude: exclude}, &buf); err != nil {
		t.Fatal(err)
	}
	want := []string{"a/", "a/.git/", "a/.git/y", "a/bc", "ab", "top", "zz"}
	if got := tarfile.Names(t, buf.Bytes()); !slices.Equal(got, want) {
		t.Errorf("out: %q, want %q", got, want)
	}
	buf.Reset()
	if _, err := in.TarOut(t.Context(), dir, api.TarOutOptions{}, &buf); err != nil {
		t.Fatal(err)
	}
	back := t.TempDir()
	if _, err := in.TarIn(t.Context(), back, api.TarInOptions{Exclude: []string{".git", "a/.git", "*", "zz", "a/b"}, Atomic: true}, &buf); err != nil {
		t.Fatal(err)
	}
	if got := in.run(t, "cd "+back+" && find . | sort | tr '\\n' ' '"); got != ". ./a ./a/bc ./ab ./top" {
		t.Errorf("in: %q", got)
	}
}

// Absolute symlinks into the directory lead there from wherever it is unpacked.
func TestAbsoluteLinksBecomeRelative(t *testing.T) {
	in := boot(t, nil)
	dir := t.TempDir()
	in.run(t, "cd "+dir+" && mkdir -p a/b && echo f >f && ln -s "+dir+"/f a/b/in && ln -s "+dir+" a/root && ln -s "+dir+"x out && ln -s /usr/bin/env env && ln -s "+dir+"/a/../f dots && ln -s ../f a/rel")
	links := func(o api.TarOutOptions) map[string]string {
		var buf bytes.Buffer
		if _, err := in.TarOut(t.Context(), dir, o, &buf); err != nil {
			t.Fatal(err)
		}
		found := map[string]string{}
		for r := tar.NewReader(&buf); ; {
			h, err := r.Next()
			if err == io.EOF {
				return found
			}
			if err != nil {
				t.Fatal(err)
			}
			if h.Typeflag == tar.TypeSymlink {
				found[h.Name] = h.Linkname
			}
		}
	}
	got := links(api.TarOutOptions{})
	for name, want := range map[string]string{"a/b/in": "../../f", "a/root": "..", "out": dir + "x", "env": "/usr/bin/env", "dots": dir + "/a/../f", "a/rel": "../f"} {
		if got[name] != want {
			t.Errorf("%s leads to %q, want %q", name, got[name], want)
		}
	}
	if got := links(api.TarOutOptions{KeepLinks: true}); got["a/b/in"] != dir+"/f" {
		t.Errorf("kept: %v", got)
	}
}

// Some readers of archives refuse hard links: each name of a file has its content.
func TestHardLinksBecomeCopies(t *testing.T) {
	in := boot(t, nil)
	dir := t.TempDir()
	in.run(t, "cd "+dir+" && mkdir d && echo content >one && ln one d/two && ln one d/three")
	for _, copies := range []bool{false, true} {
		var buf bytes.Buffer
		if _, err := in.TarOut(t.Context(), dir, api.TarOutOptions{CopyHardLinks: copies}, &buf); err != nil {
			t.Fatal(err)
		}
		files, links := 0, 0
		for r := tar.NewReader(&buf); ; {
			h, err := r.Next()
			if err == io.EOF {
				break
			}
			if err != nil {
				t.Fatal(err)
			}
			switch h.Typeflag {
			case tar.TypeReg:
				files++
				if data, err := io.ReadAll(r); err != nil || string(data) != "content\n" {
					t.Errorf("%s: %q, %v", h.Name, data, err)
				}
			case tar.TypeLink:
				links++
			}
		}
		if want := map[bool]int{false: 1, true: 3}[copies]; files != want || links != 3-want {
			t.Errorf("copies %v: %d files and %d links, want %d and %d", copies, files, links, want, 3-want)
		}
	}
}

func TestSparseFilesStaySmall(t *testing.T) {
	in := boot(t, nil)
	dir := t.TempDir()
	in.run(t, "cd "+dir+" && mkdir a && truncate -s 64M a/s && printf end >>a/s && truncate -s 3M a/z")
	var buf bytes.Buffer
	if _, err := in.TarOut(t.Context(), dir+"/a", api.TarOutOptions{}, &buf); err != nil {
		t.Fatal(err)
	}
	if _, err := in.TarIn(t.Context(), dir+"/b", api.TarInOptions{}, &buf); err != nil {
		t.Fatal(err)
	}
	if got := in.run(t, "cd "+dir+" && cmp a/s b/s && cmp a/z b/z && du -s b | cut -f1"); len(got) > 3 {
		t.Errorf("the copy takes %s KiB", got)
	}
}

// All kinds of files, and more names than are read at once.
func TestPackKinds(t *testing.T) {
	in := boot(t, nil)
	dir := t.TempDir()
	in.run(t, "cd "+dir+" && mkfifo fifo && ln -s f link && echo f >f && mkdir d many && chmod 0 f && "+
		`i=0; while [ $i -lt 1500 ]; do : >many/$(printf '%0200d' $i); i=$((i+1)); done`)
	if err := unix.Mknod(dir+"/device", unix.S_IFCHR|0o600, int(unix.Mkdev(1, 3))); err != nil && !errors.Is(err, unix.EPERM) {
		t.Fatal(err)
	}
	var buf bytes.Buffer
	rep, err := in.TarOut(t.Context(), dir, api.TarOutOptions{}, &buf)
	if err != nil || rep.Entries != 1504 || rep.Bytes != 2 {
		t.Errorf("%d entries, %d bytes, %v", rep.Entries, rep.Bytes, err)
	}
	for _, s := range rep.Skipped {
		if s.Path != "fifo" && s.Path != "device" || s.Reason != "it is a FIFO, socket or device" {
			t.Errorf("left out %+v", s)
		}
	}
	if got := tarfile.Names(t, buf.Bytes()); len(got) != 1504 || !slices.Contains(got, "link") || !slices.Contains(got, "d/") || len(rep.Skipped) == 0 {
		t.Errorf("%d names, %v", len(got), rep.Skipped)
	}
}
