//go:build linux

package nsjail

import (
	"slices"
	"strings"
	"testing"

	"github.com/cloche-dev/cloche/internal/engine/hostrootfs"
	"github.com/cloche-dev/cloche/internal/engine/native"
)

func jailed() native.Jailed {
	return native.Jailed{
		Hostname: "box", Root: "/run/root", Empty: "/run/empty", Made: "/run/made", IDs: 65536, Caps: hostrootfs.AgentCaps,
		Keep: []int{3, 4, 5, 9}, Log: 14, Agent: []string{"/.agent/agent", "guest"},
	}
}

func everything(string) bool { return true }

// values are those of an option, which may come more than once.
func values(argv []string, option string) []string {
	var out []string
	for i, a := range argv {
		if a == "--" {
			break
		}
		if a == option {
			out = append(out, argv[i+1])
		}
	}
	return out
}

func TestCommand(t *testing.T) {
	got := command(jailed(), everything)
	for option, want := range map[string][]string{
		"--mode": {"o"}, "--time_limit": {"0"}, "--nice_level": {"0"}, "--log_fd": {"14"}, "--hostname": {"box"}, "--chroot": {"/run/root"},
		"--user": {"0:0:65536"}, "--group": {"0:0:65536"}, "--pass_fd": {"3", "4", "5", "9"}, "--mount": {"none:/proc:proc:"},
	} {
		if v := values(got, option); !slices.Equal(v, want) {
			t.Errorf("%s is %q, want %q", option, v, want)
		}
	}
	for _, flag := range []string{"--disable_rlimits", "--disable_clone_newnet", "--disable_proc", "--rw"} {
		if !slices.Contains(got, flag) {
			t.Errorf("there is no %s", flag)
		}
	}
	covers := values(got, "--bindmount_ro")
	for _, want := range []string{"/dev/null:/proc/cmdline", "/run/empty:/proc/acpi", "/proc/sys:/proc/sys", "/run/made/stat:/proc/stat", "/run/made/boot_id:/proc/sys/kernel/random/boot_id"} {
		if !slices.Contains(covers, want) {
			t.Errorf("%s is not among what is covered: %q", want, covers)
		}
	}
	if slices.Index(covers, "/proc/sys:/proc/sys") > slices.Index(covers, "/run/made/boot_id:/proc/sys/kernel/random/boot_id") {
		t.Error("what is covered of /proc/sys is below it")
	}
	if i := slices.Index(got, "--mount"); i > slices.Index(got, "--bindmount_ro") {
		t.Error("/proc is mounted on what covers it")
	}
	for _, bad := range []string{"--keep_caps", "--disable_no_new_privs", "--disable_clone_newuser", "--disable_clone_newpid", "--no_pivotroot", "--keep_env"} {
		if slices.Contains(got, bad) {
			t.Errorf("there is a %s", bad)
		}
	}
}

func TestCapabilities(t *testing.T) {
	j := jailed()
	n := 0
	for c := range 64 {
		if j.Caps>>uint(c)&1 != 0 {
			n++
			if c >= len(capNames()) || capNames()[c] == "" {
				t.Errorf("capability %d of the agent's has no name", c)
			}
		}
	}
	if caps := values(command(j, everything), "--cap"); len(caps) != n {
		t.Errorf("%d capabilities become %q", n, caps)
	}
}

func TestIDMaps(t *testing.T) {
	for _, test := range []struct {
		uid, count uint32
		want       string
	}{
		{0, 1, "0:0:1"},
		{0, 65536, "0:0:65536"},
		{1000, 65536, "1000:1000:1 0:0:1000 1001:1001:64535"},
		{65535, 65536, "65535:65535:1 0:0:65535"},
	} {
		if got := strings.Join(idMaps(test.uid, test.count), " "); got != test.want {
			t.Errorf("%d of %d: %s, want %s", test.uid, test.count, got, test.want)
		}
	}
}

// TestReadOnlyRoot is not remounted to be written.
func TestReadOnlyRoot(t *testing.T) {
	j := jailed()
	j.ReadOnly = true
	if slices.Contains(command(j, everything), "--rw") {
		t.Error("a read-only root is mounted to be written")
	}
}

// FuzzCommand: whatever a sandbox is called and runs stays what it is and where it is.
func FuzzCommand(f *testing.F) {
	for _, seed := range []string{"box", "--keep_caps", "-e", "a b", "'", "\"", "$(id)", "a\nb", "", "--", ":"} {
		f.Add(seed, seed)
	}
	plain := command(jailed(), everything)
	f.Fuzz(func(t *testing.T, hostname, arg string) {
		j := jailed()
		j.Hostname, j.Agent = hostname, []string{"/.agent/agent", arg}
		got := command(j, everything)
		if n := len(got); got[n-3] != "--" || got[n-1] != arg {
			t.Fatalf("the agent's arguments are not at the end: %q", got)
		}
		want := slices.Clone(plain)
		if i := slices.Index(want, "--hostname"); hostname == "" {
			want = slices.Delete(want, i, i+2)
		} else {
			want[i+1] = hostname
		}
		if n := len(got) - 2; !slices.Equal(got[:n], want[:len(want)-2]) {
			t.Fatalf("a name has changed more than itself: %q", got)
		}
	})
}

func TestHelpOfAnother(t *testing.T) {
	whole := strings.Join(options(), "|x VALUE\n --")
	for _, test := range []struct{ help, want string }{
		{" " + strings.Join(options(), "|x VALUE\n "), ""},
		{strings.ReplaceAll(whole, "pass_fd", "pass-fd"), "--pass_fd"},
		{"usage: something else", "does not answer as nsjail does"},
		{"", "does not answer as nsjail does"},
	} {
		err := missing(test.help)
		if (err == nil) != (test.want == "") || err != nil && !strings.Contains(err.Error(), test.want) {
			t.Errorf("a help of %d bytes: %v, want %q", len(test.help), err, test.want)
		}
	}
}
