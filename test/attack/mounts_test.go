//go:build linux

package attack_test

import (
	"bytes"
	"crypto/sha256"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/cloche-dev/cloche/test/fixture"
)

// mountAttacks try to uncover what rules and mounts cover, and to undo them, by mounts
// in new user and mount namespaces. TOP is where a directory with rules is mounted, RULES
// is whether there are any, and another directory is mounted at TOP/over. Each attack is
// made by a process of its own, which may enter namespaces.
const mountAttacks = `
import traceback
TOPS = os.fsencode(TOP)
NEWUSER, NEWNS, MNT_DETACH = 0x10000000, 0x00020000, 2
BIND, MOVE, REC, REMOUNT, PRIVATE, SLAVE, SHARED = 4096, 8192, 16384, 32, 1 << 18, 1 << 19, 1 << 20
def enter():
    uid, gid = os.getuid(), os.getgid()
    if call(272, NEWUSER | NEWNS)[0] != 0: return False
    # Who has no map has the capabilities all the same. uid 0 may need one to be mapped.
    for name, text in (("setgroups", "deny"), ("uid_map", f"0 {uid} 1"), ("gid_map", f"0 {gid} 1")):
        try:
            with open("/proc/self/" + name, "w") as f: f.write(text)
        except OSError as e: print("not mapped:", name, e)
    return True
def mount(source, target, kind=b"", flags=0, data=b""):
    return call(165, source, target, kind, flags, data)[0] == 0
def umount(target, flags=0): return call(166, target, flags)[0] == 0
serial = 0
def place():
    global serial
    serial += 1
    name = f"/tmp/attack-{os.getpid()}-{serial}"
    os.makedirs(name)
    return name
def quietly(f):
    try: return f()
    except OSError: return None
# Whether a directory that should be that of TOP shows or takes more than TOP does.
def look(what, top):
    top = os.fsdecode(top)
    for name in ("over/below", "over2/below") + (("den/secret", "deep/er/secret", "den2/secret") if RULES else ()):
        if reads(os.path.join(top, name)): bad(what, "reads", name)
    for name in ("over/below", "over/file") + (("file", "ro/file", "den/secret") if RULES else ()):
        if writes(os.path.join(top, name), b"ATTACKED\n"): bad(what, "writes", name)
    if RULES:
        for dir in ("den", "ro", "deep/er"):
            if quietly(lambda: os.close(os.open(os.path.join(top, dir, "new"), os.O_CREAT | os.O_WRONLY))) is None: continue
            if os.path.exists(os.path.join(top, dir, "new")): bad(what, "creates in", dir)
def overlays(lower, upper, work):
    data = b"lowerdir=%s,upperdir=%s,workdir=%s" % (lower, upper, work)
    for kind in (b"overlay", b"overlay.of.mine"):
        at = place()
        if mount(b"o", at.encode(), kind, 0, data): yield at, kind
    fd = call(430, b"overlay", 0)[0]
    if fd < 0: return
    for pair in data.split(b","): call(431, fd, 1, *pair.split(b"="), 0)
    call(431, fd, 6, 0, 0, 0)
    tree = call(432, fd, 0, 0)[0]
    if tree >= 0:
        yield f"/proc/self/fd/{tree}", "fsconfig"
        at = place()
        if call(429, tree, b"", -100, at.encode(), 4)[0] == 0: yield at, "move_mount"
def overlay():
    top = os.open(TOP, os.O_RDONLY)
    if not enter(): return
    copy = place()
    mount(TOPS, copy.encode(), b"", BIND | REC)
    empty = place().encode()
    parts = [("", b""), ("free", b"/free"), ("ro", b"/ro"), ("deep", b"/deep")]
    for base in (TOPS, copy.encode(), b"/proc/self/fd/%d" % top):
        for name, part in parts:
            for how in overlays(base + part, place().encode(), place().encode()):
                look(("a lower layer", base, name, how), how[0]) if not name else quietly(lambda: bad("a layer of", base, name, how)) if RULES and ENGINE == "gvisor" else None
            for how in overlays(empty, base + part, base + b"/free"):
                look(("an upper layer", base, name, how), how[0]) if not name else quietly(lambda: bad("a layer on", base, name, how)) if RULES and ENGINE == "gvisor" else None
    # What the image "host" covers.
    for how in overlays(b"/usr", place().encode(), place().encode()):
        for dir in ("etc", "local/etc"):
            if quietly(lambda: sorted(os.listdir(how[0] + "/" + dir))) != quietly(lambda: sorted(os.listdir("/usr/" + dir))): bad("a layer on /usr uncovers", dir)
def overlay_works():
    if not enter(): return
    at = place()
    if not mount(b"t", at.encode(), b"tmpfs"): bad("no tmpfs in a user namespace"); return
    for name in ("l", "u", "w"): os.mkdir(at + "/" + name)
    open(at + "/l/file", "w").close()
    with open("/proc/self/uid_map") as f:
        if not f.read().strip(): bad("no ids can be mapped in a user namespace")
    ways = list(overlays(b"%s/l" % at.encode(), b"%s/u" % at.encode(), b"%s/w" % at.encode()))
    if len(ways) < 4: bad("an overlay of tmpfs works by", ways, "alone")
    for at, how in ways:
        if os.listdir(at) != ["file"]: bad("an overlay of tmpfs holds", os.listdir(at))
    with open(ways[0][0] + "/new", "w") as f: f.write("x")
    os.rename(ways[0][0] + "/new", ways[0][0] + "/newer"); os.unlink(ways[0][0] + "/newer"); os.unlink(ways[0][0] + "/file")
def copies():
    if not enter(): return
    for source in (TOPS, TOPS + b"/deep", TOPS + b"/den", TOPS + b"/ro"):
        for flags in (BIND, BIND | REC):
            at = place().encode()
            if not mount(source, at, b"", flags): continue
            if source == TOPS: look(("a bind", flags), at)
            for child in (b"/den", b"/over", b"/ro", b"/file", b"/deep/er", b"/deep"):
                for f in (0, MNT_DETACH):
                    if umount(at + child, f): bad("unmounts", child, "of a copy")
            if mount(b"", at + b"/ro", b"", REMOUNT | BIND): bad("makes a copy of ro writable")
            inside = quietly(lambda: os.open(at, os.O_RDONLY))
            umount(at, MNT_DETACH)
            if source == TOPS and inside is not None: look("a copy that was taken away", "/proc/self/fd/%d" % inside)
        for flags in (1, 1 | 0x8000):
            tree = call(428, -100, source, flags)[0]
            if tree < 0: continue
            if source == TOPS: look(("open_tree", flags), "/proc/self/fd/%d" % tree)
            for child in (b"/den", b"/over"):
                if umount(b"/proc/self/fd/%d" % tree + child, MNT_DETACH): bad("unmounts", child, "of a tree")
                if call(429, tree, child[1:], -100, place().encode(), 0)[0] == 0: bad("moves", child, "out of a tree")
            at = place().encode()
            if call(429, tree, b"", -100, at, 4)[0] == 0 and source == TOPS: look("a tree that was moved", at)
def own():
    if not enter(): return
    for child in (b"", b"/den", b"/over", b"/ro", b"/file", b"/deep", b"/deep/er"):
        at = TOPS + child
        for flags in (0, MNT_DETACH):
            if umount(at, flags): bad("unmounts", at)
        if mount(at, place().encode(), b"", MOVE) or call(429, -100, at, -100, place().encode(), 0)[0] == 0: bad("moves", at)
    for child in (b"/ro", b"/file"):
        if RULES and (mount(b"", TOPS + child, b"", REMOUNT) or mount(b"", TOPS + child, b"", REMOUNT | BIND)): bad("remounts", child)
        if RULES and call(442, -100, TOPS + child, 0, struct.pack("QQQQ", 0, 1, 0, 0), 32)[0] == 0 and writes(TOP + "/ro/file"): bad("mount_setattr", child)
    look("its own namespace", TOP)
# Who has no mount points in the own namespace renames and removes those of the first.
def lost():
    top = os.open(TOP, os.O_RDONLY)
    free = os.open(TOP + "/free", os.O_RDONLY)
    if not enter(): return
    at = place()
    if not mount(b"t", at.encode(), b"tmpfs"): return
    os.mkdir(at + "/old"); os.chdir(at)
    if call(155, b".", b"old")[0] != 0: return
    os.chdir("/")
    if not umount(b"/old", MNT_DETACH): return
    with_fd = dict(src_dir_fd=top, dst_dir_fd=top)
    os.close(os.open("mine", os.O_CREAT | os.O_WRONLY, dir_fd=free)); os.rename("mine", "mine2", src_dir_fd=free, dst_dir_fd=free)
    for name in ("over",) + (("den", "ro", "deep", "file") if RULES else ()):
        for what, f in (("renames", lambda: os.rename(name, name + "2", **with_fd)), ("replaces", lambda: os.rename("free/mine2", name, **with_fd)),
                        ("exchanges", lambda: None if call(316, top, name.encode(), top, b"free", 2)[0] == 0 else os.stat("/nothing")),
                        ("removes", lambda: os.unlink(name, dir_fd=top)), ("removes", lambda: os.rmdir(name, dir_fd=top))):
            try: f(); bad(what, name)
            except OSError: pass
    os.unlink("mine2", dir_fd=free)
# What belongs to the first namespace is not mounted on, shared or moved from another.
def first():
    dirs = [os.open(d, os.O_RDONLY) for d in ("/", TOP, TOP + "/free", "/tmp")]
    before = open("/proc/self/mountinfo").read()
    pid = os.fork()
    if pid == 0:
        if enter():
            for fd in dirs:
                at = b"/proc/self/fd/%d" % fd
                for flags in (SHARED, SHARED | REC, SLAVE, PRIVATE): mount(b"", at, b"", flags)
                mount(b"t", at, b"tmpfs"); mount(TOPS + b"/free", at, b"", BIND); umount(at + b"/den"); mount(b"", at, b"", REMOUNT)
                tree = call(432, call(430, b"tmpfs", 0)[0], 0, 0)[0]
                call(429, tree, b"", -100, at, 4)
        os._exit(0)
    os.waitpid(pid, 0)
    if open("/proc/self/mountinfo").read() != before: bad("changes the mounts of the first namespace:", open("/proc/self/mountinfo").read())
def peers():
    if not enter(): return
    mount(b"", b"/", b"", SHARED | REC)
    at = place().encode()
    mount(TOPS, at, b"", BIND | REC)
    for twice in range(2):
        pid = os.fork()
        if pid == 0:
            if call(272, NEWNS if twice else NEWUSER | NEWNS)[0] == 0:
                for flags in (SLAVE | REC, PRIVATE | REC, SHARED | REC):
                    mount(b"", b"/", b"", flags)
                    for child in (b"/den", b"/over", b"/ro", b"/deep", b"/deep/er"):
                        for base in (TOPS, at):
                            mount(b"t", base + child, b"tmpfs"); umount(base + child, MNT_DETACH)
                            if umount(base + child): bad("unmounts", base + child, "in a namespace in the namespace")
                look("a namespace in the namespace", TOP); look("a copy in the namespace in the namespace", at)
            os._exit(0)
        os.waitpid(pid, 0)
    for base in (TOPS, at): look("after its peers", base)
def others():
    old = [quietly(lambda: os.open("/proc/self/ns/" + ns, 0)) for ns in ("mnt", "user")]
    r, w = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(r); enter(); os.chdir(TOP); fd = os.open(TOP, os.O_RDONLY)
        umount(TOPS + b"/over", MNT_DETACH)
        os.write(w, b"x%d" % fd); time.sleep(20); os._exit(0)
    os.close(w)
    fd = os.read(r, 10)[1:].decode()
    for base in (f"/proc/{pid}/root{TOP}", f"/proc/{pid}/cwd", f"/proc/{pid}/fd/{fd}", f"/proc/self/root{TOP}", f"/proc/1/root{TOP}"): look(base, base)
    if enter():
        for base in (f"/proc/{pid}/root{TOP}", f"/proc/{pid}/cwd"): look(base, base)
        for f in old:
            if f is not None and call(308, f, 0)[0] == 0: bad("enters its old namespace again")
        quietly(lambda: os.chroot(TOP)); look("a chroot", "/" if os.path.exists("/free") else TOP)
    os.kill(pid, 9); os.waitpid(pid, 0)
def kinds():
    if not enter(): return
    allowed = {"tmpfs", "proc", "sysfs", "devpts", "devtmpfs", "mqueue", "fuse", "overlay", "ramfs"}
    for kind in {k for line in open("/proc/filesystems") for k in line.split()} | {"9p", "erofs", "ext4", "cgroup", "cgroup2"}:
        for data in (b"", b"trans=fd,rfdno=3,wfdno=3", b"ifd=3"):
            for name in (kind, kind + ".x"):
                if mount(b"x", place().encode(), name.encode(), 0, data) and kind not in allowed: bad("mounts", name)
for f in (overlay, copies, own, lost, first, peers, others, kinds) + ((overlay_works,) if ENGINE == "gvisor" else ()):
    pid = os.fork()
    if pid == 0:
        try: f(); os._exit(0)
        except BaseException as e:
            traceback.print_exc(); sys.stderr.flush()
        os._exit(1)
    if os.waitpid(pid, 0)[1] != 0: print("the attack failed:", f.__name__, flush=True); failed = True
    look("after " + f.__name__, TOP)
sys.exit("failed" in globals())
`

// covered makes a directory whose parts are to be covered, with what covers one of them.
func covered(t *testing.T) (top, over string) {
	t.Helper()
	dir := t.TempDir()
	top, over = filepath.Join(dir, "top"), filepath.Join(dir, "over")
	for name, text := range map[string]string{
		"top/den/secret": "s", "top/deep/er/secret": "s", "top/over/below": "s", "top/ro/file": "r", "top/file": "r", "top/free/file": "f", "over/file": "o",
	} {
		name = filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(name), 0o777); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(name, []byte(text), 0o666); err != nil {
			t.Fatal(err)
		}
	}
	// Only the rules refuse, for any user inside.
	for dir := filepath.Dir(top); dir != os.TempDir() && len(dir) > 1; dir = filepath.Dir(dir) {
		_ = os.Chmod(dir, 0o755)
	}
	err := filepath.WalkDir(filepath.Dir(top), func(name string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() {
			return os.Chmod(name, 0o777)
		}
		return os.Chmod(name, 0o666)
	})
	if err != nil {
		t.Fatal(err)
	}
	return top, over
}

// held is what a directory holds below what is covered.
func held(t *testing.T, dir string) map[string]string {
	t.Helper()
	all := map[string]string{}
	err := filepath.WalkDir(dir, func(name string, d fs.DirEntry, err error) error {
		rel, _ := filepath.Rel(dir, name)
		if err != nil || rel == "top/free" {
			return fs.SkipDir
		}
		if d.IsDir() {
			all[rel] = "directory"
			return nil
		}
		b, err := os.ReadFile(name)
		all[rel] = fmt.Sprintf("%x", sha256.Sum256(b))
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// TestAttackMounts: by no mount is what rules and mounts cover read, written or moved,
// on any engine, for any user inside.
func TestAttackMounts(t *testing.T) {
	if runtime.GOARCH != "amd64" {
		t.Skip("needs amd64, whose numbers of system calls the attacks have")
	}
	fixture.OnEnginesAnyUser(t, func(t *testing.T, engine string) {
		h := fixture.New(t)
		rules := engine == "gvisor" // the others refuse rules on paths of mounts
		for _, c := range []struct {
			name      string
			flags     []string
			workspace bool
		}{
			{name: "mount"},
			{name: "read-only root", flags: []string{"--read-only"}},
			{name: "workspace", workspace: true},
		} {
			if c.workspace && !rules {
				continue
			}
			top, over := covered(t)
			before := held(t, filepath.Dir(top))
			at, flags := "/m", append([]string{"create", "--engine", engine, "--name", "attacker"}, c.flags...)
			if c.workspace {
				at = "/workspace"
				flags = append(flags, "--workspace", top)
			} else {
				flags = append(flags, "--mount", top+":"+at)
			}
			flags = append(flags, "--mount", over+":"+at+"/over:ro")
			if rules {
				for _, r := range []string{"den:none", "ro:ro", "file:ro", "deep/er:none"} {
					flags = append(flags, "--rule", at+"/"+r)
				}
			}
			if out, status := h.Try(flags...); status != 0 {
				if os.Geteuid() != 0 && engine != "gvisor" {
					t.Skipf("needs an engine %s that works for this user: %s", engine, out)
				}
				t.Fatalf("create: status %d\n%s", status, out)
			}
			for _, user := range []string{"0", "1000"} {
				if _, status := h.Try("exec", "--user", user, "attacker", "--", "true"); status != 0 {
					continue // there is only one user inside
				}
				t.Run(c.name+" as "+user, func(t *testing.T) {
					h.T = t
					out, status := attackMounts(h, engine, user, at, rules)
					if strings.Contains(out, "ESCAPED") || status != 0 {
						t.Errorf("status %d\n%s", status, out)
					}
					if after := held(t, filepath.Dir(top)); !maps.Equal(before, after) {
						t.Errorf("the host's directories held\n\t%v\nand hold\n\t%v", before, after)
					}
				})
				h.T = t
			}
			if engine == "gvisor" {
				// The record has it as any other refusal of a rule.
				if !fixture.Poll(func() bool {
					return strings.Contains(h.Must("events", "--json", "attacker"), `tried to \"mount\"`)
				}) {
					t.Errorf("a refused layer is not told:\n%s", h.Must("events", "attacker"))
				}
			}
			alive(h, "attacker")
			h.Must("rm", "-f", "attacker")
		}
		h.Left()
	})
}

// attackMounts makes the attacks as a user of a sandbox.
func attackMounts(h *fixture.Fixture, engine, user, top string, rules bool) (string, int) {
	h.T.Helper()
	cmd := h.Command("exec", "--user", user, "--timeout", "100s", "attacker", "--", "python3", "-")
	var in bytes.Buffer
	fmt.Fprintf(&in, "ENGINE = %q\nTOP = %q\nRULES = bool(%d)\n", engine, top, map[bool]int{true: 1}[rules])
	in.WriteString(enginePrelude + mountAttacks)
	cmd.Stdin = &in
	out, _ := cmd.CombinedOutput()
	return string(out), cmd.ProcessState.ExitCode()
}
