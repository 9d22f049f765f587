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
	"time"

	"github.com/rogpeppe/go-internal/testscript"
)

// patience bounds every wait of a script.
const patience = time.Minute

type stateKey struct{}

// scriptState is what the commands of one script share.
type scriptState struct {
	bin, home string
	daemon    *exec.Cmd
	// groupsBefore are empty cgroups of others that were there before.
	groupsBefore []string
}

func state(ts *testscript.TestScript) *scriptState { return ts.Value(stateKey{}).(*scriptState) }

// tearDown ends what a script that failed left running.
func (s *scriptState) tearDown() {
	if s.daemon != nil {
		// It removes the cgroup of the sentry that it keeps ready, if it can.
		_ = s.daemon.Process.Signal(syscall.SIGTERM)
		late := time.AfterFunc(10*time.Second, func() { _ = s.daemon.Process.Kill() })
		_ = s.daemon.Wait()
		late.Stop()
	}
	for _, p := range s.processes() {
		_ = syscall.Kill(p.pid, syscall.SIGKILL)
	}
	for _, left := range s.leftMounts() {
		_ = exec.Command("umount", "--lazy", strings.TrimPrefix(left, "mount ")).Run()
	}
	_ = exec.Command("chmod", "-R", "u+rwx", s.home).Run()
	_ = os.RemoveAll(s.home)
}

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
	case args[0] == "upgrade" && s.daemon == nil:
		ts.Check(upgrade(s.bin, args[1:]...))
		return
	case args[0] == "start" && s.daemon == nil:
		s.startDaemon(ts, args[1:])
		return
	case s.daemon == nil:
		ts.Fatalf("no daemon runs")
	}
	switch args[0] {
	case "stop":
		ts.Check(s.daemon.Process.Signal(syscall.SIGTERM))
		if err := s.daemon.Wait(); err != nil {
			ts.Fatalf("the daemon ended with %v\n%s", err, ts.ReadFile("daemon.log"))
		}
		s.daemon = nil
	case "kill9":
		ts.Check(s.daemon.Process.Kill())
		_ = s.daemon.Wait()
		s.daemon = nil
	case "rss":
		ts.Setenv(args[1], strconv.Itoa(rss(ts, s.daemon.Process.Pid)))
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
func (s *scriptState) startDaemon(ts *testscript.TestScript, flags []string) {
	var settings []string
	flags = slices.DeleteFunc(slices.Clone(flags), func(f string) bool {
		set := setting.MatchString(f)
		if set {
			settings = append(settings, f)
		}
		return set
	})
	log, err := os.OpenFile(ts.MkAbs("daemon.log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	ts.Check(err)
	defer log.Close()
	cmd := exec.Command(s.bin, append([]string{"serve"}, flags...)...)
	cmd.Stdout, cmd.Stderr, cmd.Dir = log, log, ts.MkAbs(".")
	cmd.Env = []string{"PATH=" + ts.Getenv("PATH"), "HOME=" + ts.Getenv("HOME"), "CLOCHE_HOME=" + s.home, "CLOCHE_TOKEN=" + ts.Getenv("CLOCHE_TOKEN")}
	cmd.Env = append(cmd.Env, settings...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	ts.Check(cmd.Start())
	s.daemon = cmd
	host := "unix://" + filepath.Join(s.home, "cloche.sock")
	if i := slices.Index(flags, "--listen"); i >= 0 {
		host = flags[i+1]
	}
	network, addr, _ := strings.Cut(host, "://")
	if !poll(func() bool { return answers(network, addr) }) {
		ts.Fatalf("the daemon does not answer at %s:\n%s", host, ts.ReadFile("daemon.log"))
	}
}

// answers says whether a daemon speaks at an address. That one can connect says less:
// what a killed daemon was just starting has its socket for a moment.
func answers(network, addr string) bool {
	conn, err := net.DialTimeout(network, addr, time.Second)
	if err != nil {
		return false
	}
	defer conn.Close()
	if err := conn.SetDeadline(time.Now().Add(time.Minute)); err != nil {
		return false
	}
	if _, err := io.WriteString(conn, "GET / HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"); err != nil {
		return false
	}
	n, _ := conn.Read(make([]byte, 1))
	return n > 0
}

// poll asks until it is so, or until patience ends.
func poll(isSo func() bool) bool {
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	deadline := time.After(patience)
	for !isSo() {
		select {
		case <-tick.C:
		case <-deadline:
			return isSo()
		}
	}
	return true
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
	if !poll(func() bool { return (ts.Exec(args[0], args[1:]...) == nil) != neg }) {
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
		ts.Check(stopProcess(pid))
		return
	}
	ts.Check(syscall.Kill(pid, sig))
}

// stopProcess stops a process and returns when all of its threads have stopped. The signal alone
// returns before that: on a busy machine a thread may still answer a request that comes later.
func stopProcess(pid int) error {
	if err := syscall.Kill(pid, syscall.SIGSTOP); err != nil {
		return err
	}
	running := ""
	if !poll(func() bool { running = runningThread(pid); return running == "" }) {
		return fmt.Errorf("process %d does not stop: %s", pid, running)
	}
	return nil
}

// runningThread returns the directory and the state of a thread that has not stopped, or "".
func runningThread(pid int) string {
	threads, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*", pid))
	for _, dir := range threads {
		// No field means that the thread has ended.
		if fields := statFields(dir); len(fields) > 0 && !slices.Contains([]string{"T", "t", "Z", "X"}, fields[0]) {
			return dir + " is in state " + fields[0]
		}
	}
	return ""
}

// sentries SIGNAL sends a signal to every process of the sandboxes.
func cmdSentries(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 1 || args[0] != "KILL" {
		ts.Fatalf("usage: sentries KILL")
	}
	s := state(ts)
	n := 0
	for _, p := range s.processes() {
		if s.daemon == nil || p.pid != s.daemon.Process.Pid {
			n++
			if err := syscall.Kill(p.pid, syscall.SIGKILL); !errors.Is(err, syscall.ESRCH) {
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
	network, addr := "unix", filepath.Join(state(ts).home, "cloche.sock")
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
			body = io.MultiReader(strings.NewReader(`{"name":"`), io.LimitReader(letters{}, n), strings.NewReader(`"}`))
		case "-tcp":
			network, addr, host = "tcp", rest[1], rest[1]
		}
	}
	c := http.Client{Timeout: patience, Transport: &http.Transport{
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

// letters is an endless text.
type letters struct{}

func (letters) Read(p []byte) (int, error) {
	for i := range p {
		p[i] = 'a'
	}
	return len(p), nil
}
