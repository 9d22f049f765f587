//go:build linux

package sudo

import (
	"bytes"
	"os"
	"os/exec"
	"reflect"
	"strings"
	"testing"
)

// TestMain plays sudo itself for the tests that execute it.
func TestMain(m *testing.M) {
	if os.Args[0] == Argv0 {
		os.Exit(Main(os.Args, os.Stderr))
	}
	os.Exit(m.Run())
}

func TestParse(t *testing.T) {
	for line, want := range map[string]command{
		"id":                              {user: "root", argv: []string{"id"}},
		"-n -E apt-get install -y x":      {user: "root", keepHome: true, argv: []string{"apt-get", "install", "-y", "x"}},
		"-nH -u user -g adm id -u":        {user: "user", group: "adm", argv: []string{"id", "-u"}},
		"-uuser id":                       {user: "user", argv: []string{"id"}},
		"-u #1000 id":                     {user: "1000", argv: []string{"id"}},
		"--user=user --chdir /tmp pwd":    {user: "user", dir: "/tmp", argv: []string{"pwd"}},
		"--preserve-env=PATH,HOME A=1 id": {user: "root", keepHome: true, env: []string{"A=1"}, argv: []string{"id"}},
		"A=1 B=x=y env":                   {user: "root", env: []string{"A=1", "B=x=y"}, argv: []string{"env"}},
		"-- -x":                           {user: "root", argv: []string{"-x"}},
		"-i":                              {user: "root", login: true},
		"-v":                              {user: "root", over: true},
		"-s echo a":                       {user: "root", shell: true, argv: []string{"echo", "a"}},
		"./a=b":                           {user: "root", argv: []string{"./a=b"}},
	} {
		got, err := parse(strings.Fields(line))
		if len(got.argv) == 0 {
			got.argv = nil
		}
		if err != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("%s: %+v, %v, want %+v", line, got, err, want)
		}
	}
	for _, line := range []string{"", "-u", "-n", "--nothing id", "-Z id", "--user", "-e file"} {
		if got, err := parse(strings.Fields(line)); err == nil {
			t.Errorf("%q is taken as %+v", line, got)
		}
	}
}

// TestRun executes it as the user of the test.
func TestRun(t *testing.T) {
	run := func(args ...string) (string, error) {
		cmd := exec.CommandContext(t.Context(), "/proc/self/exe")
		cmd.Args = append([]string{Argv0}, args...)
		cmd.Env = []string{"PATH=/usr/bin:/bin", "HOME=/nowhere"}
		var out bytes.Buffer
		cmd.Stdout, cmd.Stderr = &out, &out
		err := cmd.Run()
		return out.String(), err
	}
	if os.Geteuid() != 0 {
		if out, err := run("id"); err == nil || !strings.Contains(out, "cannot get root's rights") {
			t.Errorf("without root's rights: %q %v", out, err)
		}
		return
	}
	for want, args := range map[string][]string{
		"0\n":                   {"-n", "id", "-u"},
		"/root b c\n":           {"A=b c", "sh", "-c", "echo $HOME $A"},
		"/nowhere root\n":       {"-E", "sh", "-c", "echo $HOME $USER"},
		"65534\n":               {"-u", "nobody", "id", "-u"},
		"it's one\n":            {"-s", "printf", `%s\n`, "it's one"},
		"/tmp\n":                {"-D", "/tmp", "pwd"},
		"sudo: x: command not":  {"x"},
		"sudo: unknown user no": {"-u", "no-such-user", "id"},
		"sudo: usage":           {},
	} {
		if out, err := run(args...); !strings.HasPrefix(out, want) || (err == nil) != !strings.HasPrefix(want, "sudo") {
			t.Errorf("%q: %q %v, want %q", args, out, err, want)
		}
	}
}
