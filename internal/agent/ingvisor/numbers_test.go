//go:build linux

package ingvisor

import (
	"strings"
	"testing"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/agent"
)

// runAs is run as a user, in a directory.
func (b *box) runAs(t *testing.T, who, cwd, script string) string {
	t.Helper()
	s := shell(script)
	s.User, s.Cwd = who, cwd
	s.Env = []string{"PATH=/usr/bin:/bin"}
	r, err := b.Exec(t.Context(), s)
	if err != nil || !r.OK() {
		t.Fatalf("as %q: %v, exit %d, %s", who, err, r.ExitStatus(), r.Stderr)
	}
	return strings.TrimSpace(string(r.Stdout))
}

// TestNumbers runs programs as users of a sandbox with one id, as a normal user's daemon makes
// it.
func TestNumbers(t *testing.T) {
	b := boot(t, func(c *agent.Config) { c.SingleUser = true })
	for who, want := range map[string]string{
		"": "0 0 0 root /root", "alice": "1000 1000 1000 alice /home/alice", "1000": "1000 1000 1000 alice /home/alice", "1234:77": "1234 77 77 /",
	} {
		if got := b.runAs(t, who, "/", `echo $(id -u) $(id -g) $(id -G) $USER $HOME`); got != want {
			t.Errorf("%q is %q, want %q", who, got, want)
		}
	}
	if got := b.runAs(t, "alice", "/", `grep -E "^Cap|^NoNewPrivs" /proc/self/status | tr -s "0\n\t" "0 "`); got != "CapInh: 0 CapPrm: 0 CapEff: 0 CapBnd: 0 CapAmb: 0 NoNewPrivs: 1" {
		t.Errorf("a user has %q", got)
	}
	// Files of a mount, which the host keeps, and of the root, which gVisor does.
	for _, dir := range []string{"/work", "/srv", "/tmp"} {
		b.run(t, "cd "+dir+"; mkdir -p d; echo root >d/theirs; chmod 600 d/theirs; chmod 700 d")
		if got := b.runAs(t, "alice", dir+"/d", "echo alice >>theirs; echo >made; mv made moved; stat -c %u:%g theirs moved"); got != "1000:1000\n1000:1000" {
			t.Errorf("%s: alice sees %q", dir, got)
		}
		if got := b.run(t, "cd "+dir+"/d; stat -c %u:%g theirs moved; cat theirs"); got != "0:0\n0:0\nroot\nalice" {
			t.Errorf("%s: root sees %q", dir, got)
		}
		if got := b.runAs(t, "1234", dir+"/d", "stat -c %u:%g moved"); got != "1234:0" {
			t.Errorf("%s: another user sees %q", dir, got)
		}
	}
}

// TestNumberGainsNothing tries what would give a user more than root of the sandbox has.
func TestNumberGainsNothing(t *testing.T) {
	b := boot(t, func(c *agent.Config) { c.SingleUser = true })
	got := b.runAs(t, "alice", "/", `python3 - <<'END'
import ctypes, os
c = ctypes.CDLL(None, use_errno=True)
def ok(name, *args):
    if c.syscall(*args) == 0: print("could", name)
ok("be root", 105, 0)
ok("be root for files", 117, 0, 0, 0)
ok("leave its groups", 116, 0, 0)
ok("mount", 165, b"none", b"/mnt", b"tmpfs", 0, 0)
ok("change its root", 161, b"/tmp")
ok("name the machine", 170, b"x", 1)
ok("kill the agent", 62, 1, 9)
ok("trace the agent", 101, 16, 1, 0, 0)
for ns in ("user", "mnt", "pid", "net"):
    try: fd = os.open("/proc/1/ns/" + ns, 0)
    except OSError: continue
    ok("enter the agent's " + ns, 308, fd, 0)
for name in ("uid_map", "gid_map"):
    try: os.write(os.open("/proc/self/" + name, 1), b"0 0 4294967000")
    except OSError: continue
    print("could map", name)
# In a namespace of its own it has no id but the one that it has.
if c.syscall(272, 0x10000000) == 0:
    for line in (b"0 0 1", b"0 1 1", b"0 1000 2", b"0 4294967000 1"):
        try: os.write(os.open("/proc/self/uid_map", 1), line)
        except OSError: continue
        print("could map", line)
END`)
	if got != "" {
		t.Errorf("a user\n%s", got)
	}
}

// TestNumberAdopts gives a user's home and working directory to the sandbox's id, where an
// image or root have given them to the user, and nothing else.
func TestNumberAdopts(t *testing.T) {
	b := boot(t, func(c *agent.Config) { c.SingleUser = true })
	b.run(t, `mkdir -p /home/alice/a/b; truncate -s 65M /home/alice/a/large; mkdir -p /srv/app/sub /srv/other; echo x >/home/alice/a/b/f; echo y >/srv/other/f
ln -s /srv/other /home/alice/link; echo root >/home/alice/a/roots; chmod 600 /home/alice/a/roots
chown -hR 1000:1000 /home/alice /srv/app /srv/other; chown 33 /home/alice/a/roots; chmod -R go-rwx /home/alice /srv/app /srv/other`)
	if got := b.runAs(t, "alice", "/srv/app", `echo >>~/a/b/f; echo >new; echo >sub/new; stat -c %u ~ ~/a/b/f . sub; cat ~/link/f ~/a/roots 2>&1; :`); got != "1000\n1000\n1000\n1000\n"+
		"cat: /home/alice/link/f: Permission denied\ncat: /home/alice/a/roots: Permission denied" {
		t.Errorf("alice: %q", got)
	}
	if got := b.run(t, "stat -c %u /home/alice /home/alice/a/b/f /home/alice/link /home/alice/a/large /home/alice/a/roots /srv/app /srv/other /srv/other/f"); got != "0\n0\n0\n1000\n33\n0\n1000\n1000" {
		t.Errorf("the files belong to %q", got)
	}
	// With the rights of the user, and before a program has run there.
	b.run(t, "mkdir /srv/later; chown 1000 /srv/later")
	fs := b.Files(api.FileAccess{User: "alice"})
	if _, err := fs.Write(t.Context(), "/home/alice/written", agent.WriteOptions{}, strings.NewReader("x")); err != nil {
		t.Error(err)
	}
	if _, err := fs.Write(t.Context(), "/srv/later/written", agent.WriteOptions{}, strings.NewReader("x")); err == nil {
		t.Error("what is another id's was written")
	}
}
