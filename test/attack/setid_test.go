//go:build linux

package attack_test

import (
	"archive/tar"
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/client"
	"github.com/cloche-dev/cloche/internal/engine/docker/dockertest"
	"github.com/cloche-dev/cloche/test/fixture"
	"github.com/cloche-dev/cloche/test/longtest"
)

// setIDWriter writes files with set-id bits, or file capabilities, below a directory.
type setIDWriter struct {
	name string
	// do writes in dir, which is a path inside. What has been there is "own", a file that
	// is set-id already, and "shared", a directory that is set-group-ID.
	do func(*fixture.Fixture, *client.Client, string) error
	// want are the modes that what it writes has in a directory of the host; a mode of 0 is
	// a file that must not be there.
	want map[string]uint32
	// kept are those that it has in the root of the sandbox; nil is not to look.
	kept map[string]uint32
	// refused: the writer answers with an error.
	refused bool
}

// setIDWriters are all the ways by which a file comes to be in a sandbox's directory.
func setIDWriters() []setIDWriter {
	write := func(a api.FileAccess, name string, mode uint32) func(*fixture.Fixture, *client.Client, string) error {
		return func(h *fixture.Fixture, c *client.Client, dir string) error {
			_, err := c.Files("box", a).Write(h.T.Context(), path.Join(dir, name), []byte("#!/bin/sh\n"), mode)
			return err
		}
	}
	makeDir := func(a api.FileAccess, mode uint32) func(*fixture.Fixture, *client.Client, string) error {
		return func(h *fixture.Fixture, c *client.Client, dir string) error {
			return c.Files("box", a).MakeDir(h.T.Context(), path.Join(dir, "d"), api.MakeDirOptions{Mode: mode})
		}
	}
	untar := func(o api.TarInOptions) func(*fixture.Fixture, *client.Client, string) error {
		return func(h *fixture.Fixture, c *client.Client, dir string) error {
			_, err := c.TarIn(h.T.Context(), "box", dir, o, bytes.NewReader(setIDTar(h.T)))
			return err
		}
	}
	python := func(program string) func(*fixture.Fixture, *client.Client, string) error {
		return func(h *fixture.Fixture, _ *client.Client, dir string) error {
			out, status := h.Try("exec", "box", "--", "python3", "-c", setIDPrelude+program, dir)
			if status != 0 {
				return fmt.Errorf("status %d: %s", status, out)
			}
			return nil
		}
	}
	user := api.FileAccess{User: "0"}
	tarred := map[string]uint32{"a": 0o755, "b": 0o711, "c": 0o711, "d": 0o775, "d/x": 0o750, "t": 0o777 | unix.S_ISVTX, "shared": 0o2770}
	inRoot := map[string]uint32{"a": 0o4755, "b": 0o2711, "d": 0o2775, "d/x": 0o6750, "t": 0o777 | unix.S_ISVTX, "shared": 0o2770}
	return []setIDWriter{
		{name: "write", do: write(api.FileAccess{}, "f", 0o4755), want: map[string]uint32{"f": 0o755}, kept: map[string]uint32{"f": 0o4755}},
		{name: "write set-gid", do: write(api.FileAccess{}, "f", 0o2711), want: map[string]uint32{"f": 0o711}, kept: map[string]uint32{"f": 0o2711}},
		{name: "write sticky", do: write(api.FileAccess{}, "f", 0o7700), want: map[string]uint32{"f": 0o1700}, kept: map[string]uint32{"f": 0o7700}},
		{name: "write as a user", do: write(user, "f", 0o6755), want: map[string]uint32{"f": 0o755}, kept: map[string]uint32{"f": 0o6755}},
		{name: "replace", do: write(api.FileAccess{}, "own", 0), want: map[string]uint32{"own": 0o755}},
		{name: "replace as a user", do: write(user, "own", 0), want: map[string]uint32{"own": 0o755}},
		{name: "replace and say so", do: write(api.FileAccess{}, "own", 0o4755), want: map[string]uint32{"own": 0o755}},
		{name: "make a directory", do: makeDir(api.FileAccess{}, 0o6775), want: map[string]uint32{"d": 0o775}, kept: map[string]uint32{"d": 0o6775}},
		{name: "make a directory as a user", do: makeDir(user, 0o3777), want: map[string]uint32{"d": 0o1777}, kept: map[string]uint32{"d": 0o3777}},
		{name: "tar", do: untar(api.TarInOptions{}), want: tarred, kept: inRoot},
		{name: "tar at once", do: untar(api.TarInOptions{Atomic: true}), want: tarred, kept: inRoot},
		{name: "tar into an empty directory", do: untar(api.TarInOptions{Clear: true}), want: map[string]uint32{"a": 0o755, "own": 0, "shared": 0o770}},
		{name: "tar with owners", do: untar(api.TarInOptions{Owner: api.OwnerKeep}), want: map[string]uint32{"a": 0o755, "d/x": 0o750}, kept: inRoot},
		{name: "tool write", want: map[string]uint32{"own": 0o755}, do: func(h *fixture.Fixture, c *client.Client, dir string) error {
			_, err := c.WriteText(h.T.Context(), "box", api.ToolWrite{ToolPlace: api.ToolPlace{Root: dir, Path: "own"}, Content: "other"})
			return err
		}},
		{name: "tool edit", want: map[string]uint32{"own": 0o755}, do: func(h *fixture.Fixture, c *client.Client, dir string) error {
			_, err := c.EditText(h.T.Context(), "box", api.ToolEdit{ToolPlace: api.ToolPlace{Root: dir, Path: "own"}, Old: "own", New: "other"})
			return err
		}},
		{name: "move from the root", refused: true, want: map[string]uint32{"f": 0}, do: func(h *fixture.Fixture, c *client.Client, dir string) error {
			if _, err := c.WriteFile(h.T.Context(), "box", "/var/tmp/s", []byte("x"), 0o4755); err != nil {
				h.T.Error(err)
			}
			return c.MoveFile(h.T.Context(), "box", "/var/tmp/s", path.Join(dir, "f"))
		}},
		{name: "cp", want: map[string]uint32{"d/a": 0o755}, do: func(h *fixture.Fixture, _ *client.Client, dir string) error {
			from := h.T.TempDir()
			if err := errors.Join(os.WriteFile(filepath.Join(from, "a"), nil, 0o755), unix.Chmod(filepath.Join(from, "a"), 0o4755)); err != nil {
				return err
			}
			h.Must("cp", from, "box:"+path.Join(dir, "d"))
			return nil
		}},
		{name: "cp of a tar", want: map[string]uint32{"a": 0o755, "d/x": 0o750}, do: func(h *fixture.Fixture, _ *client.Client, dir string) error {
			cmd := h.Command("cp", "-", "box:"+dir)
			cmd.Stdin = bytes.NewReader(setIDTar(h.T))
			out, err := cmd.CombinedOutput()
			if err != nil {
				err = fmt.Errorf("%w: %s", err, out)
			}
			return err
		}},
		{name: "calls of a program", do: python(setIDCalls), want: map[string]uint32{"made": 0o755, "linked": 0o755}},
		{name: "tools of a program", do: python(setIDTools), want: map[string]uint32{"copy": 0o755}},
		{name: "content written by a program", do: python(`
with open("own", "r+b") as f: f.write(b"#!/bin/evil")
`), want: map[string]uint32{"own": 0o755}},
		{name: "content mapped by a program", do: python(`
import mmap
try:
    os.truncate("own", 4096)
    f = open("own", "r+b"); m = mmap.mmap(f.fileno(), 4096); m[:4] = b"evil"; m.flush()
except OSError as e: print(e)
`), want: map[string]uint32{"own": 0o755}},
		{name: "chmod of a program", do: python(setIDChmod), want: map[string]uint32{"a": 0o755, "b": 0o755, "c": 0o755, "d": 0o755, "e": 0o755, "dir": 0o755, "linked": 0},
			kept: map[string]uint32{"a": 0o4755, "b": 0o2711, "c": 0o6755, "d": 0o4711, "e": 0o4755, "dir": 0o2775}},
		{name: "installation of a package", do: python(setIDPostinst), want: map[string]uint32{"ping": 0o755}, kept: map[string]uint32{"ping": 0o4755}},
		{name: "capabilities given by a program", do: python(setIDCapabilities), want: map[string]uint32{"capable": 0o755}},
	}
}

// setIDTar is an archive with all that must not arrive.
func setIDTar(t *testing.T) []byte {
	t.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, h := range []tar.Header{
		{Name: "a", Typeflag: tar.TypeReg, Mode: 0o4755, PAXRecords: map[string]string{"SCHILY.xattr.security.capability": "\x01\x00\x00\x02\xff\xff\xff\xff\x00\x00\x00\x00\xff\xff\xff\xff\x00\x00\x00\x00"}},
		{Name: "b", Typeflag: tar.TypeReg, Mode: 0o2711},
		{Name: "c", Typeflag: tar.TypeLink, Linkname: "b"},
		{Name: "d", Typeflag: tar.TypeDir, Mode: 0o2775},
		{Name: "d/x", Typeflag: tar.TypeReg, Mode: 0o6750},
		{Name: "t", Typeflag: tar.TypeDir, Mode: 0o1777},
		{Name: "shared", Typeflag: tar.TypeDir, Mode: 0o2770},
	} {
		if err := w.WriteHeader(&h); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

const setIDPrelude = `
import ctypes, os, stat, subprocess, sys
libc = ctypes.CDLL(None, use_errno=True)
os.chdir(sys.argv[1])
os.umask(0)
def call(nr, *args):
    return libc.syscall(nr, *(ctypes.c_long(a) if isinstance(a, int) else a for a in args))
AT = -100
`

// setIDCalls gives files a mode by every call that can.
const setIDCalls = `
for mode in (0o4755, 0o2755, 0o6755):
    with open("made", "w") as f: pass
    os.chmod("made", 0o755)
    fd = os.open("made", os.O_RDWR)
    call(90, b"made", mode)
    call(91, fd, mode)
    call(268, AT, b"made", mode)
    call(452, AT, b"made", mode, 0)
    call(452, fd, b"", mode, 0x1000)
    for nr, args in ((2, (b"x%d", os.O_CREAT | os.O_RDWR, mode)), (257, (AT, b"x%d", os.O_CREAT | os.O_RDWR, mode)),
                     (85, (b"x%d", mode)), (133, (b"x%d", stat.S_IFREG | mode, 0)), (259, (AT, b"x%d", stat.S_IFREG | mode, 0)),
                     (83, (b"x%d", mode)), (258, (AT, b"x%d", mode))):
        call(nr, *(a % nr if isinstance(a, bytes) else a for a in args))
    class How(ctypes.Structure): _fields_ = [("flags", ctypes.c_uint64), ("mode", ctypes.c_uint64), ("resolve", ctypes.c_uint64)]
    call(437, AT, b"x437", ctypes.byref(How(os.O_CREAT | os.O_RDWR, mode, 0)), 24)
    try: tmp = os.open(".", os.O_TMPFILE | os.O_RDWR, 0o755)
    except OSError: tmp = -1 # gVisor has none
    for flags in (0x410000 | os.O_RDWR, 0x400000 | os.O_RDWR):
        fd = call(257, AT, b".", flags, mode)
        if fd >= 0:
            call(91, fd, mode)
            call(265, AT, b"/proc/self/fd/%d" % fd, AT, b"linked", 0x400)
    if tmp >= 0:
        call(91, tmp, mode)
        call(265, AT, b"/proc/self/fd/%d" % tmp, AT, b"linked", 0x400)
if not os.path.exists("linked"):
    open("linked", "w").close()
    os.chmod("linked", 0o755)
`

// setIDChmod changes files that are there, by each call and by each way to name one. It
// fails in a directory of the host only.
const setIDChmod = `
for name in "abcde": open(name, "w").close(); os.chmod(name, 0o755)
os.mkdir("dir"); os.chmod("dir", 0o755)
here = os.open(".", os.O_RDONLY)
os.symlink("a", "link")
inside = os.getcwd().startswith("/var/tmp/")
wrong = []
def check(what, failed):
    if failed and (inside or ctypes.get_errno() != 1): wrong.append((what, os.strerror(ctypes.get_errno())))
    if not failed and not inside: wrong.append((what, "is done"))
check("chmod by a link", call(90, b"link", 0o4755))
check("fchmod", call(91, os.open("b", os.O_RDONLY), 0o2711))
check("fchmodat", call(268, here, b"c", 0o6755))
newer = call(452, AT, b"a", 0o755, 0) == 0 # some daemons' own filters do not know it
check("fchmodat2" if newer else "a whole path", call(452 if newer else 268, AT, os.fsencode(os.getcwd() + "/d"), 0o4711, 0))
if newer: check("fchmodat2 by a descriptor", call(452, os.open("e", os.O_RDONLY), b"", 0o4755, 0x1000))
check("chmod by a link, again", call(90, b"link", 0o4755))
check("a directory", call(90, b"dir", 0o2775))
check("a path of /proc", call(90, b"/proc/self/fd/%d" % os.open("e", os.O_RDONLY), 0o4755))
# What is not there, and what is not a path, fails as ever.
for args, want in (((90, b"missing", 0o4755), 2), ((90, 8, 0o4755), 14), ((91, 999, 0o4755), 9), ((91, -1, 0o4755), 9), ((452, AT, b"a", 0o4755, 0x8000), 22)):
    ctypes.set_errno(0)
    if call(*args) != -1 or ctypes.get_errno() not in (want, 1 if newer else 38): wrong.append((args, os.strerror(ctypes.get_errno())))
# Another user is refused.
pid = os.fork()
if pid == 0:
    os.setuid(1000)
    os._exit(0 if call(90, b"a", 0o6777) == -1 else 1)
if os.waitpid(pid, 0)[1]: wrong.append("who may not change it has changed it")
if wrong and os.path.exists("/proc/self/attr"): sys.exit(str(wrong)) # gVisor's gofer answers for the host
`

// setIDPostinst does what scripts of Debian's packages do, such as iputils-ping's.
const setIDPostinst = `
script = r"""
set -e
cp /bin/true ping; chmod 755 ping
if command -v setcap > /dev/null && setcap cap_net_raw+ep ping 2> /dev/null; then
    setcap -r ping # gVisor gives them, and then is not asked for the bit
fi
chmod u+s ping
"""
done = subprocess.run(["sh", "-c", script])
if done.returncode and os.getcwd().startswith("/var/tmp/"): sys.exit("the script fails: %d" % done.returncode)
`

// setIDTools uses what people use.
const setIDTools = `
open("/var/tmp/from", "w").close()
os.chmod("/var/tmp/from", 0o755)
try: os.chmod("/var/tmp/from", 0o6755)
except OSError: pass
for argv in (["cp", "-p", "/var/tmp/from", "copy"], ["install", "-m", "4755", "/var/tmp/from", "installed"],
             ["mv", "/var/tmp/from", "moved"], ["ln", "/var/tmp/from", "link"], ["chmod", "u+s", "copy"], ["mkdir", "-m", "2755", "dir"],
             ["chmod", "g+s", "dir"], ["tar", "-xpf", "t.tar"]):
    if argv[0] == "tar":
        import io, tarfile
        with tarfile.open("t.tar", "w") as t:
            i = tarfile.TarInfo("untarred"); i.mode = 0o6755
            t.addfile(i, io.BytesIO(b""))
    subprocess.run(argv, stderr=subprocess.DEVNULL)
os.chmod("copy", 0o755)
`

// setIDCapabilities gives files capabilities, in each of the forms that the kernel knows.
const setIDCapabilities = `
import struct
open("capable", "w").close()
os.chmod("capable", 0o755)
for value in (struct.pack("<IIIII", 0x02000001, 0xffffffff, 0, 0xffffffff, 0), struct.pack("<IIIIII", 0x03000001, 0xffffffff, 0, 0xffffffff, 0, 0)):
    for what in ("capable", os.open("capable", os.O_RDWR)):
        try: os.setxattr(what, "security.capability", value)
        except OSError: pass
    class Args(ctypes.Structure): _fields_ = [("value", ctypes.c_uint64), ("size", ctypes.c_uint32), ("flags", ctypes.c_uint32)]
    b = ctypes.create_string_buffer(value)
    call(463, AT, b"capable", 0, b"security.capability", ctypes.byref(Args(ctypes.addressof(b), len(value), 0)), 16)
with open("/proc/self/status") as f:
    for line in f:
        # gVisor's own kernel has no use for it but in user namespaces.
        if os.path.exists("/proc/self/attr") and line.startswith("CapBnd:") and int(line.split()[1], 16) >> 31 & 1: sys.exit("SETFCAP is in the bounding set")
`

// TestAttackSetID has every writer leave set-id files and file capabilities in a directory
// of the host, on every engine. The host sees none of them, and the rest of each mode is as
// it was asked for. In the sandbox's own root the file calls keep them.
func TestAttackSetID(t *testing.T) {
	longtest.Skip(t, "it starts daemons and sandboxes")
	if os.Geteuid() != 0 {
		t.Skip("needs root: the attack is about files that root owns")
	}
	fixture.NsjailHere(t)
	for _, name := range []string{"docker", "podman"} {
		if dockertest.Can(name) != nil {
			continue
		}
		begin := dockertest.Docker
		if name == "podman" {
			begin = dockertest.Podman
		}
		d, err := begin()
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = d.Close() })
		t.Setenv("CLOCHE__"+strings.ToUpper(name)+"__HOST", d.Host)
	}
	h := fixture.New(t)
	c, err := client.New(client.Options{Host: "unix://" + h.Socket()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	engines := fixture.Engines()
	for _, name := range []string{"docker", "podman"} {
		engines = append(engines, fixture.Engine{Name: name, Missing: func() string {
			if err := dockertest.Can(name); err != nil {
				return "needs a daemon of " + name + ": " + err.Error()
			}
			return ""
		}})
	}
	for _, e := range engines {
		e.Run(t, func(t *testing.T) {
			h.T = t
			dir := t.TempDir()
			if err := os.Chmod(dir, 0o755); err != nil {
				t.Fatal(err)
			}
			h.Must("create", "--engine", e.Name, "--name", "box", "--mount", dir+":/m")
			for n, w := range setIDWriters() {
				t.Run(w.name, func(t *testing.T) {
					h.T = t
					setIDInMount(h, c, w, e.Name == "gvisor", filepath.Join(dir, fmt.Sprint(n)), fmt.Sprintf("/m/%d", n))
					if w.kept != nil {
						setIDInRoot(h, c, w, fmt.Sprintf("/var/tmp/%d", n))
					}
				})
				h.T = t
			}
			h.Must("rm", "-f", "box")
		})
	}
	h.T = t
}

// setIDInMount has one writer write into a directory of the host. With strict the bit of a
// directory that is set-group-ID already may go, too.
func setIDInMount(h *fixture.Fixture, c *client.Client, w setIDWriter, strict bool, host, inside string) {
	h.T.Helper()
	for _, err := range []error{
		os.MkdirAll(filepath.Join(host, "shared"), 0o755), os.Chmod(host, 0o755), unix.Chmod(filepath.Join(host, "shared"), 0o2755),
		os.WriteFile(filepath.Join(host, "own"), []byte("own\n"), 0o755), unix.Chmod(filepath.Join(host, "own"), 0o4755),
	} {
		if err != nil {
			h.T.Fatal(err)
		}
	}
	if err := w.do(h, c, inside); (err != nil) != w.refused {
		h.T.Errorf("the answer is %v, want an error: %t", err, w.refused)
	}
	for name, want := range w.want {
		var st unix.Stat_t
		err := unix.Lstat(filepath.Join(host, name), &st)
		switch {
		case want == 0 && err == nil:
			h.T.Errorf("%s is there", name)
		case want == 0:
		case err != nil:
			h.T.Errorf("%s: %v", name, err)
		case st.Mode&0o7777 != want && !(strict && name == "shared" && st.Mode&0o7777 == want&^unix.S_ISGID):
			h.T.Errorf("%s has mode %o, want %o", name, st.Mode&0o7777, want)
		}
	}
	_, touched := w.want["own"]
	err := filepath.WalkDir(host, func(name string, _ fs.DirEntry, err error) error {
		var st unix.Stat_t
		if err == nil {
			err = unix.Lstat(name, &st)
		}
		if err != nil {
			return err
		}
		shared := filepath.Base(name) == "shared" && st.Mode&unix.S_IFMT == unix.S_IFDIR && st.Mode&unix.S_ISUID == 0
		if st.Mode&(unix.S_ISUID|unix.S_ISGID) != 0 && !shared && (touched || filepath.Base(name) != "own") {
			h.T.Errorf("ESCAPED: %s has mode %o and belongs to %d:%d", name, st.Mode&0o7777, st.Uid, st.Gid)
		}
		list := make([]byte, 4096)
		n, err := unix.Llistxattr(name, list)
		if err != nil && !errors.Is(err, unix.EOPNOTSUPP) {
			return err
		}
		if slices.Contains(strings.Split(string(list[:max(n, 0)]), "\x00"), "security.capability") {
			h.T.Errorf("ESCAPED: %s has capabilities", name)
		}
		return nil
	})
	if err != nil && !errors.Is(err, io.EOF) {
		h.T.Error(err)
	}
}

// setIDInRoot has one writer write into the sandbox's root.
func setIDInRoot(h *fixture.Fixture, c *client.Client, w setIDWriter, dir string) {
	h.T.Helper()
	h.Must("exec", "box", "--", "mkdir", "-p", dir)
	if err := w.do(h, c, dir); err != nil {
		h.T.Error(err)
	}
	for name, want := range w.kept {
		got := strings.TrimSpace(h.Must("exec", "box", "--", "stat", "-c", "%a", path.Join(dir, name)))
		if got != fmt.Sprintf("%o", want) {
			h.T.Errorf("%s has mode %s in the root, want %o", name, got, want)
		}
	}
}
