//go:build linux

package langbot

import (
	"bytes"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/coder/websocket"

	"github.com/cloche-dev/cloche/api"
)

// Where the machine cannot enforce what LangBot always sends, that is told before a session
// is asked for, and the operator may have sessions run without it.
func TestLimitsThatAreNotEnforced(t *testing.T) {
	p := &placement{"inst-1", "ws-1", 1}
	noGroups := func(spec api.SandboxSpec) error {
		for _, l := range []struct {
			field string
			asked bool
		}{{limitMemory, spec.Limits.MemoryBytes > 0}, {limitPids, spec.Limits.Pids > 0}} {
			if l.asked {
				e := api.Errorf(api.CodeUnsupported, "%s: no cgroup is delegated", l.field)
				e.Field = l.field
				return e
			}
		}
		return nil
	}
	d := newServer(t, nil)
	d.core.refuse = noGroups
	got := d.must("box_get_backend_info", nil, obj{})
	if reason, _ := got["reason"].(string); got["available"] != false || !strings.Contains(reason, "no cgroup is delegated") || !strings.Contains(reason, "ALLOW_UNENFORCED_LIMITS") {
		t.Errorf("%v", got)
	}
	d.refused("BoxBackendUnavailableError: ", "box_create_session", p, obj{"session_id": "s"})
	// A client does not say so.
	d.must("box_init", nil, obj{"compat": obj{"allow_unenforced_limits": true}})
	d.refused("BoxBackendUnavailableError: ", "box_create_session", p, obj{"session_id": "s"})

	d = newServer(t, func(o *Options) { o.Environ = []string{"BOX__COMPAT__ALLOW_UNENFORCED_LIMITS=true"} })
	d.core.refuse = noGroups
	if got := d.must("box_get_backend_info", nil, obj{}); got["available"] != true {
		t.Errorf("%v", got)
	}
	made := d.must("box_create_session", p, obj{"session_id": "s"})
	spec := d.core.live[made["backend_session_id"].(string)]
	if spec.Limits.MemoryBytes != 0 || spec.Limits.Pids != 0 || spec.Limits.CPUs != usualCPUs {
		t.Errorf("%+v", spec.Limits)
	}
	if text := fmt.Sprint(made["unenforced"]); !strings.Contains(text, limitMemory) || !strings.Contains(text, limitPids) || strings.Contains(text, limitCPUs) {
		t.Errorf("the answer says %s", text)
	}
}

// What the operator's rules made of a session is in its answer, also after a restart.
func TestAdjustedSessionsSaySo(t *testing.T) {
	p := &placement{"inst-1", "ws-1", 1}
	d := newServer(t, nil)
	d.core.adjusted = []api.Adjustment{{Field: limitMemory, Asked: "512MiB", Used: "256MiB", Rule: "profiles.default.max"}}
	made := d.must("box_create_session", p, obj{"session_id": "s", "persistent": true})
	if text := fmt.Sprint(made["adjusted"]); !strings.Contains(text, "256MiB") || !strings.Contains(text, "profiles.default.max") {
		t.Errorf("%v", made)
	}
	d.conn = nil
	d.opts.Dir = d.s.o.Dir
	d.start()
	if got := d.must("box_get_session", p, obj{"session_id": "s"}); !strings.Contains(fmt.Sprint(got["adjusted"]), "256MiB") {
		t.Errorf("after a restart: %v", got)
	}
}

// A network is what the operator says that it is.
func TestNetworkOfTheOperator(t *testing.T) {
	p := &placement{"inst-1", "ws-1", 1}
	for name, c := range map[string]struct {
		environ []string
		profile string
		egress  *api.Egress
	}{
		"nothing is said":     {nil, "", &api.Egress{Allow: []string{"*"}}},
		"rules":               {[]string{"BOX__NETWORK__ALLOW=pypi.org, *.example", "BOX__NETWORK__DENY=x.example"}, "", &api.Egress{Allow: []string{"pypi.org", "*.example"}, Deny: []string{"x.example"}}},
		"a profile":           {[]string{"BOX__NETWORK__PROFILE=bots"}, "bots", nil},
		"a profile and rules": {[]string{"BOX__NETWORK__PROFILE=bots", `BOX__NETWORK__ALLOW=["pypi.org"]`}, "bots", &api.Egress{Allow: []string{"pypi.org"}}},
	} {
		d := newServer(t, func(o *Options) { o.Environ = c.environ })
		// A client does not say so.
		d.must("box_init", nil, obj{"network": obj{"profile": "loose", "allow": []string{"10.0.0.1:22"}}})
		on := d.core.live[d.must("box_create_session", p, obj{"session_id": "on", "network": "on"})["backend_session_id"].(string)]
		if on.Profile != c.profile || fmt.Sprintf("%+v", on.Egress) != fmt.Sprintf("%+v", c.egress) || on.Network != api.NetworkOn {
			t.Errorf("%s: profile %q, egress %+v", name, on.Profile, on.Egress)
		}
		off := d.core.live[d.must("box_create_session", p, obj{"session_id": "off"})["backend_session_id"].(string)]
		if off.Profile != "" || off.Egress != nil || off.Network != api.NetworkNone {
			t.Errorf("%s: without a network: %+v", name, off)
		}
	}
}

// Where the operator's template names every sandbox, a session says who it is.
func TestForcedNames(t *testing.T) {
	p := &placement{"inst-1", "ws-1", 3}
	d := newServer(t, nil)
	d.core.forced = true
	spec := d.core.live[d.must("box_create_session", p, obj{"session_id": "a b"})["backend_session_id"].(string)]
	if spec.Identity == nil || spec.Identity.LauncherID != "g3-a-b" || spec.Identity.LauncherType == "" {
		t.Fatalf("%+v", spec.Identity)
	}
	d.must("box_exec", p, obj{"session_id": "a b", "cmd": "x"})
	d.must("box_start_managed_process", p, obj{"session_id": "a b", "spec": obj{"command": "x"}})
	if got := d.core.execs[0].Identity; got == nil || got.LauncherID != spec.Identity.LauncherID {
		t.Errorf("the exec is of %+v", got)
	}
}

func TestLongCommands(t *testing.T) {
	p := &placement{"inst-1", "ws-1", 1}
	d := newServer(t, nil)
	d.must("box_exec", p, obj{"session_id": "s", "cmd": "x"})
	long := "printf %s '" + strings.Repeat("x", 455_000) + "' | wc -c; wc -c; exit 3"
	d.must("box_exec", p, obj{"session_id": "s", "cmd": long})
	d.refused("BoxValidationError: cmd", "box_exec", p, obj{"session_id": "s", "cmd": long + "\x00"})
	short, given := d.core.execs[0], d.core.execs[1]
	if len(short.Stdin) > 0 || !strings.HasSuffix(short.Argv[2], "x") {
		t.Errorf("%q", short.Argv)
	}
	for _, a := range given.Argv {
		if len(a) > maxArgument {
			t.Fatalf("an argument has %d bytes", len(a))
		}
	}
	// What a shell makes of it: the command's own input is empty, and its status is its own.
	dir := t.TempDir()
	cmd := exec.CommandContext(t.Context(), given.Argv[0], given.Argv[1:]...)
	cmd.Stdin = strings.NewReader(strings.ReplaceAll(string(given.Stdin), "/workspace", dir))
	out, err := cmd.Output()
	if err == nil || cmd.ProcessState.ExitCode() != 3 || string(bytes.TrimSpace(out)) != "455000\n0" {
		t.Errorf("%q, %v", out, err)
	}
}

func TestRefusalsEndTheErrorOutput(t *testing.T) {
	p := &placement{"inst-1", "ws-1", 1}
	d := newServer(t, nil)
	r := d.must("box_exec", p, obj{"session_id": "s", "cmd": "refused"})
	if want := "curl: (7) no\ncloche: b.example:22 was not let out: no rule allows it; allow b.example:22 (and 1 more)"; r["stderr"] != want {
		t.Errorf("%q", r["stderr"])
	}
	// The last line of LangBot's own scripts stays the last.
	if r := d.must("box_exec", p, obj{"session_id": "s", "cmd": "export"}); r["stderr"] != "x\nLANGBOT_OUTBOX_LIMIT:{}" {
		t.Errorf("%q", r["stderr"])
	}
}

// A line that is too long ends a relay, and the next client has what comes behind it.
func TestProcessGoesOnBehindALongLine(t *testing.T) {
	d, place, p := relayed(t)
	conn := d.attached(place)
	p.say("before\n")
	if got := line(t, conn); got != "before" {
		t.Fatalf("%q", got)
	}
	p.say(strings.Repeat("x", maxFrame+10))
	if got := closing(t, conn); got.Code != websocket.StatusMessageTooBig {
		t.Fatalf("%v", got)
	}
	conn = d.attached(place)
	p.say("rest of it\nafter\n")
	if got := line(t, conn); got != "after" {
		t.Errorf("after a line that was not whole: %.40q", got)
	}
	p.say(strings.Repeat("y", maxFrame+10) + "\nagain\n")
	if got := closing(t, conn); got.Code != websocket.StatusMessageTooBig {
		t.Fatalf("%v", got)
	}
	conn = d.attached(place)
	if got := line(t, conn); got != "again" {
		t.Errorf("after a whole line: %.40q", got)
	}
}

// The directories of workspaces have the operator's mode where it names one, so that LangBot
// can read them as another user of their group.
func TestModeOfDirectories(t *testing.T) {
	p := &placement{"inst-1", "ws-1", 1}
	root := resolved(t.TempDir())
	d := newServer(t, func(o *Options) {
		o.Environ = []string{"BOX__LOCAL__HOST_ROOT=" + root, "BOX__LOCAL__DIRECTORY_MODE=2750"}
	})
	own := filepath.Join(root, "default", "tenants", p.durable())
	mode := func(dir string, want fs.FileMode) {
		t.Helper()
		if fi, err := os.Stat(dir); err != nil || fi.Mode().Perm()|fi.Mode()&fs.ModeSetgid != want {
			t.Errorf("%s: %v, %v", dir, fi, err)
		}
	}
	d.must("box_create_session", p, obj{"session_id": "s"})
	mode(own, 0o750|fs.ModeSetgid)
	mode(filepath.Dir(own), 0o750|fs.ModeSetgid)
	// What is there keeps its mode, and a link leads nowhere.
	if err := os.Chmod(own, 0o700); err != nil {
		t.Fatal(err)
	}
	d.must("box_create_session", p, obj{"session_id": "t", "host_path": own})
	mode(own, 0o700)
	out := t.TempDir()
	if err := os.Symlink(out, filepath.Join(root, "default", "link")); err != nil {
		t.Fatal(err)
	}
	s := d.s.settings()
	if err := s.makeDirectory(filepath.Join(root, "default", "link", "x"), 0o750); err == nil {
		t.Error("made behind a link")
	}
	for _, bad := range []string{"0777", "0600", "rwx", "4755"} {
		if _, err := (Options{}).configure(nil, []byte(`{"local":{"directory_mode":"`+bad+`"}}`), said{}); err == nil {
			t.Errorf("the mode %s is taken", bad)
		}
	}
	// A client does not say it.
	d = newServer(t, func(o *Options) { o.Environ = []string{"BOX__LOCAL__HOST_ROOT=" + filepath.Join(root, "other")} })
	d.must("box_init", nil, obj{"local": obj{"host_root": filepath.Join(root, "other"), "directory_mode": "0755"}})
	d.must("box_create_session", p, obj{"session_id": "s"})
	if _, err := os.Stat(filepath.Join(root, "other", "default", "tenants")); err == nil {
		t.Error("a client's mode is used")
	}
}
