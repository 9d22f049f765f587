//go:build linux

package guest

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/agent"
	"github.com/cloche-dev/cloche/internal/agent/guest/process"
)

// bootSingle starts an agent whose sandbox has one id.
func bootSingle(t *testing.T) *inside {
	return boot(t, func(c *agent.Config, _ *exec.Cmd) { c.SingleUser = true })
}

// bootConfined is bootSingle on a kernel that is the host's, as engines have it.
func bootConfined(t *testing.T) *inside {
	return boot(t, func(c *agent.Config, _ *exec.Cmd) { c.SingleUser, c.Confine = true, true })
}

// runAs is run as a user.
func (in *inside) runAs(t *testing.T, who, script string) string {
	t.Helper()
	s := shell(script)
	s.User = who
	r, err := in.Exec(within(t, time.Minute), s)
	if err != nil || !r.OK() {
		t.Fatalf("as %q: %v, exit %d, %s", who, err, r.ExitStatus(), r.Stderr)
	}
	return strings.TrimSpace(string(r.Stdout))
}

// TestNumbers runs programs as users of a sandbox that has root's id alone.
func TestNumbers(t *testing.T) {
	for name, boot := range map[string]func(*testing.T) *inside{"plain": bootSingle, "confined": bootConfined} {
		t.Run(name, func(t *testing.T) { testNumbers(t, boot(t), t.TempDir()) })
	}
}

func testNumbers(t *testing.T, in *inside, dir string) {
	for who, want := range map[string]string{
		"": "0 0 0", "root": "0 0 0", "0": "0 0 0", "1234": "1234 0 0", "1234:77": "1234 77 77", "65534:0": "65534 0 0",
	} {
		t.Run(who, func(t *testing.T) {
			if got := in.runAs(t, who, `echo $(id -u) $(id -g) $(id -G)`); got != want {
				t.Errorf("it is %q, want %q", got, want)
			}
		})
	}
	// It has no capability, now or later, and root has its own.
	caps := `grep -E "^Cap(Inh|Prm|Eff|Bnd|Amb)" /proc/self/status | tr -s "0\n\t" "0 "`
	if got := in.runAs(t, "1234", caps); got != "CapInh: 0 CapPrm: 0 CapEff: 0 CapBnd: 0 CapAmb: 0" {
		t.Errorf("a user has %q", got)
	}
	if got := in.run(t, caps); strings.Contains(got, "CapEff: 0 ") {
		t.Errorf("root has %q", got)
	}
	// What root owns is the user's, and what the user makes is root's.
	in.run(t, "cd "+dir+"; echo root >theirs; chmod 600 theirs")
	if got := in.runAs(t, "1234:77", "cd "+dir+"; echo user >>theirs; stat -c %u:%g theirs; echo >made"); got != "1234:77" {
		t.Errorf("the user sees %q", got)
	}
	if got := in.run(t, "cd "+dir+"; stat -c %u:%g theirs made; cat theirs"); got != "0:0\n0:0\nroot\nuser" {
		t.Errorf("root sees %q", got)
	}
	var st unix.Stat_t
	if err := unix.Stat(dir+"/made", &st); err != nil || int(st.Uid) != os.Geteuid() {
		t.Errorf("outside it belongs to %d, %v", st.Uid, err)
	}
	if got := in.runAs(t, "1234", "cd "+dir+"; chown 1 theirs 2>&1; chmod 0 made; cat made 2>&1; :"); strings.Count(got, "theirs': Invalid argument") != 1 || !strings.Contains(got, "made: Permission denied") {
		t.Errorf("chown and a file of nobody: %q", got)
	}
}

// TestNumberRefused names what one id does not give.
func TestNumberRefused(t *testing.T) {
	in := bootSingle(t)
	for _, who := range []string{"0:5", "root:5", "no-such-user", "1:no-such-group", "4294967295", "-1"} {
		s := shell(":")
		s.User = who
		var ce *api.Error
		if _, err := in.Exec(t.Context(), s); !errors.As(err, &ce) || ce.Field != "user" || ce.Hint == "" {
			t.Errorf("%s: got %v", who, err)
		}
	}
}

// TestNumbersTogether has programs of several users, one after another and more of them than
// the agent keeps namespaces for.
func TestNumbersTogether(t *testing.T) {
	in := bootSingle(t)
	kept := managedShell("exec sleep 1000")
	kept.ExecID, kept.User = "kept", "1000"
	in.must(t, kept)
	pid := in.runAs(t, "1000", "until pgrep -x sleep; do sleep 0.01; done")
	// A program traces one of its own user, and signals those of all.
	in.runAs(t, "1000", "cat /proc/"+pid+"/environ >/dev/null && kill -0 "+pid)
	in.runAs(t, "1001", "! cat /proc/"+pid+"/environ 2>/dev/null && kill -0 "+pid)
	for i := range 2 * process.MaxNumbers {
		uid := fmt.Sprint(2000 + i)
		if got := in.runAs(t, uid, "id -u"); got != uid {
			t.Fatalf("it is %s, not %s", got, uid)
		}
	}
	for range 3 {
		if got := in.runAs(t, "1000", "id -u"); got != "1000" {
			t.Fatalf("it is %s", got)
		}
	}
	if err := in.Signal(t.Context(), "kept", 9); err != nil {
		t.Fatal(err)
	}
	if got := in.run(t, "ls /proc/1/fd | wc -l"); len(got) > 2 {
		t.Errorf("the agent has %s descriptors", got)
	}
}

// TestNumberIsNotJoined has programs that try to enter user namespaces while others are started
// that do: no program may.
func TestNumberIsNotJoined(t *testing.T) {
	in := bootConfined(t)
	kept := managedShell("exec sleep 1000")
	kept.User = "1000"
	in.must(t, kept)
	pid := in.runAs(t, "1000", "until pgrep -x sleep; do sleep 0.01; done")
	// It is the call that fails, and not the way to it.
	in.run(t, "nsenter -U -t "+pid+" true 2>&1 | grep -q 'reassociate to namespace.*Operation not permitted'")
	tries := managedShell("while ! nsenter -U -t " + pid + " true 2>/dev/null; do :; done; echo entered")
	tries.ExecID = "tries"
	in.must(t, tries)
	for range 50 {
		for who, script := range map[string]string{"1000": ":", "1001": "! unshare -U true 2>/dev/null && ! nsenter -U -t $$ true 2>/dev/null"} {
			in.runAs(t, who, script)
		}
	}
	ps, err := in.Processes(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range ps {
		if p.ExecID == "tries" && p.State != api.ProcessRunning {
			t.Errorf("a program has entered a user namespace, or ended: %+v", p)
		}
	}
}

// TestNumberWithTerminal has a terminal that its user opens by name.
func TestNumberWithTerminal(t *testing.T) {
	in := bootSingle(t)
	s := shell(`stat -c %u $(tty); echo by name >$(tty)`)
	s.User, s.TTY, s.Rows, s.Cols = "1234", true, 24, 80
	st, err := in.Stream(within(t, time.Minute), s)
	if err != nil {
		t.Fatal(err)
	}
	defer st.Close()
	var got bytes.Buffer
	for {
		ev, err := st.Recv()
		if err != nil {
			t.Fatal(err)
		}
		if ev.Exit != nil {
			if !ev.Exit.OK() || got.String() != "1234\r\nby name\r\n" {
				t.Errorf("exit %d after %q", ev.Exit.ExitStatus(), &got)
			}
			return
		}
		got.Write(ev.Data)
	}
}

// TestNumberOfFiles uses files with the rights of a user, who has none of root's capabilities.
func TestNumberOfFiles(t *testing.T) {
	in, dir := bootSingle(t), t.TempDir()
	if _, err := in.WriteFile(t.Context(), dir+"/f", agent.WriteOptions{User: "1234", Mode: 0o600}, strings.NewReader("content")); err != nil {
		t.Fatal(err)
	}
	if got := in.runAs(t, "1234", "stat -c %u:%a "+dir+"/f"); got != "1234:600" {
		t.Errorf("a file of the user's is %q", got)
	}
	in.run(t, "chmod 0 "+dir+"/f")
	for who, may := range map[string]bool{"": true, "root": true, "1234": false} {
		r, _, err := in.Files(api.FileAccess{User: who}).Read(t.Context(), dir+"/f", 0, -1)
		if (err == nil) != may {
			t.Errorf("%q reads a file that nobody may read: %v", who, err)
		}
		if err == nil {
			r.Close()
		}
	}
	// The agent is itself again.
	if got := in.read(t, dir+"/f"); got != "content" {
		t.Errorf("it holds %q", got)
	}
	if _, err := in.Files(api.FileAccess{User: "1234"}).Write(t.Context(), dir+"/g", agent.WriteOptions{}, strings.NewReader("more")); err != nil {
		t.Error(err)
	}
	if got := in.runAs(t, "1234", "stat -c %u "+dir+"/g; cat "+dir+"/g"); got != "1234\nmore" {
		t.Errorf("what is written with a user's rights is %q", got)
	}
}
