//go:build linux

package e2e_test

import (
	"bufio"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"

	"github.com/rogpeppe/go-internal/testscript"

	"github.com/cloche-dev/cloche/test/fixture"
)

// caller serve [MS]: sets $CALLER to the program, which runs in any image, and starts
// its target at $TARGET, whose bytes without HTTP are at $RAW.
// caller namespaces: notes the network namespaces of the sandboxes' processes, and
// called again waits until no process is in one of them.
func cmdCaller(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) == 0 {
		ts.Fatalf("usage: caller serve [MS] | namespaces")
	}
	switch args[0] {
	case "serve":
		serveCaller(ts, append(args[1:], "0")[0])
	case "namespaces":
		watchNamespaces(ts)
	default:
		ts.Fatalf("caller: what is %q?", args[0])
	}
}

func serveCaller(ts *testscript.TestScript, thought string) {
	bin, err := fixture.BuildCaller()
	ts.Check(err)
	cmd := exec.Command(bin, "serve", thought)
	out, err := cmd.StdoutPipe()
	ts.Check(err)
	ts.Check(cmd.Start())
	ts.Defer(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	line, err := bufio.NewReader(io.LimitReader(out, 4096)).ReadString('\n')
	ts.Check(err)
	f := strings.Fields(line)
	if len(f) != 2 {
		ts.Fatalf("the target says %q", line)
	}
	ts.Setenv("CALLER", bin)
	ts.Setenv("TARGET", "http://"+strings.TrimPrefix(f[0], "http="))
	ts.Setenv("RAW", strings.TrimPrefix(f[1], "raw="))
}

// seenNamespaces are those that were noted, by script.
var seenNamespaces sync.Map

func watchNamespaces(ts *testscript.TestScript) {
	noted, again := seenNamespaces.LoadAndDelete(ts)
	if !again {
		own, err := os.Readlink("/proc/self/ns/net")
		ts.Check(err)
		of := map[string]bool{}
		for _, p := range state(ts).OfSandboxes() {
			if ns, err := os.Readlink("/proc/" + strconv.Itoa(p.PID) + "/ns/net"); err == nil && ns != own {
				of[ns] = true
			}
		}
		if len(of) == 0 {
			ts.Fatalf("no process of a sandbox has a network namespace of its own")
		}
		seenNamespaces.Store(ts, of)
		return
	}
	left := ""
	gone := fixture.Poll(func() bool {
		left = ""
		links, _ := filepath.Glob("/proc/[0-9]*/ns/net")
		for _, l := range links {
			ns, err := os.Readlink(l)
			if errors.Is(err, os.ErrNotExist) || errors.Is(err, syscall.ESRCH) || errors.Is(err, os.ErrPermission) {
				continue
			}
			if noted.(map[string]bool)[ns] {
				left = l + " is " + ns
			}
		}
		return left == ""
	})
	if !gone {
		ts.Fatalf("a namespace is in use: %s", left)
	}
}
