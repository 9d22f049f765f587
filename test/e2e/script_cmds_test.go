//go:build linux

package e2e_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"github.com/rogpeppe/go-internal/testscript"

	"github.com/cloche-dev/cloche/test/fixture"
)

type stateKey struct{}

func state(ts *testscript.TestScript) *fixture.Home { return ts.Value(stateKey{}).(*fixture.Home) }

// status N cmd args… runs a command that must exit with N.
func cmdStatus(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 2 {
		ts.Fatalf("usage: status N command [args...]")
	}
	want, err := strconv.Atoi(args[0])
	ts.Check(err)
	err = ts.Exec(args[1], args[2:]...)
	got := 0
	if e, ok := errors.AsType[*exec.ExitError](err); ok {
		got = e.ExitCode()
	} else if err != nil {
		ts.Fatalf("%v", err)
	}
	if got != want {
		ts.Fatalf("exit status %d, want %d", got, want)
	}
}

// daemon start [flags…] | stop | kill9 | upgrade [FILE] | rss VAR
func cmdDaemon(ts *testscript.TestScript, neg bool, args []string) {
	s := state(ts)
	if neg || len(args) == 0 {
		ts.Fatalf("usage: daemon start [flags...] | stop | kill9 | upgrade [FILE] | rss VAR")
	}
	switch {
	case args[0] == "upgrade" && s.Daemon == nil:
		ts.Check(upgrade(s.Bin, args[1:]...))
		return
	case args[0] == "start" && s.Daemon == nil:
		startDaemon(s, ts, args[1:])
		return
	case s.Daemon == nil:
		ts.Fatalf("no daemon runs")
	}
	switch args[0] {
	case "stop":
		ts.Check(s.Daemon.Process.Signal(syscall.SIGTERM))
		if err := s.Daemon.Wait(); err != nil {
			ts.Fatalf("the daemon ended with %v\n%s", err, ts.ReadFile("daemon.log"))
		}
		s.Daemon = nil
	case "kill9":
		ts.Check(s.Daemon.Process.Kill())
		_ = s.Daemon.Wait()
		s.Daemon = nil
	case "rss":
		ts.Setenv(args[1], strconv.Itoa(rss(ts, s.Daemon.Process.Pid)))
	default:
		ts.Fatalf("daemon: what is %q?", args[0])
	}
}

// upgrade puts another build in the place of the program, as a package manager
// does: the given one, or the same code in a file of another hash.
func upgrade(bin string, other ...string) error {
	program, err := os.ReadFile(append(other, bin)[0])
	if err != nil {
		return err
	}
	if err := os.WriteFile(bin+".new", append(program, "another build"...), 0o755); err != nil {
		return err
	}
	return os.Rename(bin+".new", bin)
}

// setting is a variable of the daemon's environment among its flags.
var setting = regexp.MustCompile(`^[A-Z_]+=`)

// startDaemon takes flags, and variables of its environment as NAME=VALUE.
func startDaemon(s *fixture.Home, ts *testscript.TestScript, flags []string) {
	var settings []string
	flags = slices.DeleteFunc(slices.Clone(flags), func(f string) bool {
		set := setting.MatchString(f)
		if set {
			settings = append(settings, f)
		}
		return set
	})
	fillPool(s, ts)
	log, err := os.OpenFile(ts.MkAbs("daemon.log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	ts.Check(err)
	defer log.Close()
	cmd := exec.Command(s.Bin, append([]string{"serve"}, flags...)...)
	cmd.Stdout, cmd.Stderr, cmd.Dir = log, log, ts.MkAbs(".")
	cmd.Env = []string{"PATH=" + ts.Getenv("PATH"), "HOME=" + ts.Getenv("HOME"), "CLOCHE_HOME=" + s.Dir, "CLOCHE_TOKEN=" + ts.Getenv("CLOCHE_TOKEN")}
	cmd.Env = append(cmd.Env, settings...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	ts.Check(cmd.Start())
	s.Daemon = cmd
	host := "unix://" + filepath.Join(s.Dir, "cloche.sock")
	if i := slices.Index(flags, "--listen"); i >= 0 {
		host = flags[i+1]
	}
	network, addr, _ := strings.Cut(host, "://")
	if !fixture.Poll(func() bool { return fixture.Answers(network, addr) }) {
		ts.Fatalf("the daemon does not answer at %s:\n%s", host, ts.ReadFile("daemon.log"))
	}
	awaitPool(s, ts)
}

// rss is the resident memory of a process in KiB.
func rss(ts *testscript.TestScript, pid int) int {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	ts.Check(err)
	for line := range strings.Lines(string(b)) {
		if rest, ok := strings.CutPrefix(line, "VmRSS:"); ok {
			n, err := strconv.Atoi(strings.Fields(rest)[0])
			ts.Check(err)
			return n
		}
	}
	ts.Fatalf("no VmRSS of %d", pid)
	return 0
}

// grown BEFORE AFTER MIB fails when AFTER is more than MIB over BEFORE, in KiB.
func cmdGrown(ts *testscript.TestScript, neg bool, args []string) {
	var n [3]int
	for i := range n {
		var err error
		n[i], err = strconv.Atoi(args[i])
		ts.Check(err)
	}
	ts.Logf("grew by %d KiB", n[1]-n[0])
	if (n[1]-n[0] <= n[2]<<10) == neg {
		ts.Fatalf("grew from %d to %d KiB, limit %d MiB", n[0], n[1], n[2])
	}
}

// json FILE PATH [VALUE]: the value at PATH, such as .result.exit_code or
// .sandboxes.0.name, as compact JSON, is VALUE; without VALUE it is there.
func cmdJSON(ts *testscript.TestScript, neg bool, args []string) {
	var v any
	d := json.NewDecoder(strings.NewReader(ts.ReadFile(args[0])))
	d.UseNumber()
	if err := d.Decode(&v); err != nil {
		ts.Fatalf("%s is not JSON: %v\n%s", args[0], err, ts.ReadFile(args[0]))
	}
	found := true
	for _, key := range strings.Split(strings.TrimPrefix(args[1], "."), ".") {
		switch c := v.(type) {
		case map[string]any:
			v, found = c[key]
		case []any:
			i, err := strconv.Atoi(key)
			if found = err == nil && i < len(c); found {
				v = c[i]
			}
		default:
			found = false
		}
		if !found {
			break
		}
	}
	got := "(nothing)"
	if found {
		b, err := json.Marshal(v)
		ts.Check(err)
		if got = string(b); len(got) > 1 && got[0] == '"' {
			got = v.(string)
		}
	}
	is := found
	if len(args) == 3 {
		is = got == args[2]
	}
	if is == neg {
		ts.Fatalf("%s of %s is %s", args[1], args[0], got)
	}
}

// eventually cmd args… runs a command until it succeeds.
func cmdEventually(ts *testscript.TestScript, neg bool, args []string) {
	if !fixture.Poll(func() bool { return (ts.Exec(args[0], args[1:]...) == nil) != neg }) {
		ts.Fatalf("%v never did", args)
	}
}

// samesum A B compares two files by hash.
func cmdSameSum(ts *testscript.TestScript, neg bool, args []string) {
	var sums [2][]byte
	for i := range sums {
		f, err := os.Open(ts.MkAbs(args[i]))
		ts.Check(err)
		h := sha256.New()
		_, err = io.Copy(h, f)
		f.Close()
		ts.Check(err)
		sums[i] = h.Sum(nil)
	}
	if bytes.Equal(sums[0], sums[1]) == neg {
		ts.Fatalf("%s and %s: same is %v", args[0], args[1], neg)
	}
}

// signal NAME VAR sends a signal to the process whose id is in the file.
func cmdSignal(ts *testscript.TestScript, neg bool, args []string) {
	pid, err := strconv.Atoi(strings.TrimSpace(ts.ReadFile(args[1])))
	ts.Check(err)
	sig := map[string]syscall.Signal{"INT": syscall.SIGINT, "TERM": syscall.SIGTERM, "KILL": syscall.SIGKILL, "STOP": syscall.SIGSTOP}[args[0]]
	if sig == 0 || neg {
		ts.Fatalf("usage: signal INT|TERM|KILL|STOP FILE")
	}
	if sig == syscall.SIGSTOP {
		ts.Check(fixture.StopProcess(pid))
		return
	}
	ts.Check(syscall.Kill(pid, sig))
}

// sentries SIGNAL sends a signal to every process of the sandboxes.
func cmdSentries(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 1 || args[0] != "KILL" {
		ts.Fatalf("usage: sentries KILL")
	}
	s := state(ts)
	n := 0
	for _, p := range s.Processes() {
		if s.Daemon == nil || p.PID != s.Daemon.Process.Pid {
			n++
			if err := syscall.Kill(p.PID, syscall.SIGKILL); !errors.Is(err, syscall.ESRCH) {
				ts.Check(err) // one that died with another is dead enough
			}
		}
	}
	if n == 0 {
		ts.Fatalf("no process of a sandbox was found")
	}
}

// rawname DIR CONTENT makes a file in DIR whose name is not UTF-8.
func cmdRawName(ts *testscript.TestScript, neg bool, args []string) {
	p := filepath.Join(ts.MkAbs(args[0]), "raw-\xff\xfe.txt")
	if len(args) == 2 {
		ts.Check(os.WriteFile(p, []byte(args[1]), 0o644))
		return
	}
	if b, err := os.ReadFile(p); (err == nil) == neg {
		ts.Fatalf("the file with the raw name: %q, %v", b, err)
	}
}

// http METHOD PATH [-H 'Key: value'] [-d BODY | -f FILE | -big BYTES] [-tcp ADDR] speaks
// to the daemon as no Cloche client would. The status and the body are stdout.
func cmdHTTP(ts *testscript.TestScript, neg bool, args []string) {
	network, addr := "unix", filepath.Join(state(ts).Dir, "cloche.sock")
	var body io.Reader
	h := http.Header{}
	host := "cloche"
	for rest := args[2:]; len(rest) > 1; rest = rest[2:] {
		switch rest[0] {
		case "-H":
			k, v, _ := strings.Cut(rest[1], ": ")
			if k == "Host" {
				host = v
			}
			h.Set(k, v)
		case "-d":
			body = strings.NewReader(rest[1])
		case "-f":
			body = strings.NewReader(ts.ReadFile(rest[1]))
		case "-big":
			n, err := strconv.ParseInt(rest[1], 10, 64)
			ts.Check(err)
			body = io.MultiReader(strings.NewReader(`{"name":"`), io.LimitReader(fixture.Letters{}, n), strings.NewReader(`"}`))
		case "-tcp":
			network, addr, host = "tcp", rest[1], rest[1]
		}
	}
	c := http.Client{Timeout: fixture.Patience, Transport: &http.Transport{
		DisableKeepAlives: true,
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, network, addr)
		}}}
	req, err := http.NewRequest(args[0], "http://"+addrOr(host)+args[1], body)
	ts.Check(err)
	req.Header = h
	req.Host = host
	resp, err := c.Do(req)
	ts.Check(err)
	defer resp.Body.Close()
	text, _ := io.ReadAll(io.LimitReader(resp.Body, 1<<20))
	fmt.Fprintf(ts.Stdout(), "%d %s\n", resp.StatusCode, text)
}

func addrOr(host string) string {
	if strings.ContainsAny(host, " /") {
		return "cloche"
	}
	return host
}
