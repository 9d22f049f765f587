//go:build linux

package guest

import (
	"bytes"
	"encoding/json"
	"io"
	"os"
	"os/exec"
	"reflect"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cloche-dev/cloche/internal/agent"
	"github.com/cloche-dev/cloche/test/freeport"
)

// TestEarlyConfig: an early configuration says nothing of whose the agent is, and all the rest.
func TestEarlyConfig(t *testing.T) {
	var full agent.Config
	v := reflect.ValueOf(&full).Elem()
	for i := range v.NumField() {
		switch f := v.Field(i); f.Kind() {
		case reflect.String:
			f.SetString("x")
		case reflect.Bool:
			f.SetBool(true)
		case reflect.Slice:
			f.SetBytes([]byte("x"))
		case reflect.Float64:
			f.SetFloat(1)
		default:
			f.SetInt(1)
		}
	}
	early := reflect.ValueOf(full.Early())
	for i := range v.NumField() {
		name := v.Type().Field(i).Name
		same := reflect.DeepEqual(v.Field(i).Interface(), early.Field(i).Interface())
		if late := map[string]bool{"Token": true, "User": true, "Sudo": true, "PidsMax": true}[name]; same == late {
			t.Errorf("%s: the same is %v", name, same)
		}
	}
	if (agent.Config{}).Early().PidsMax != 0 {
		t.Error("an early configuration has a limit that the configuration has not")
	}
}

// waiting starts an agent with an early configuration and returns the other end of its configuration and of
// what it says.
func waiting(t *testing.T, early string) (tell, said *os.File) {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("needs root: it makes a pid namespace")
	}
	cmd := exec.Command("/proc/self/exe")
	cmd.Args, cmd.Env, cmd.Stderr = []string{initArgv0}, []string{}, t.Output()
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWPID | unix.CLONE_NEWNS, Pdeathsig: syscall.SIGKILL}
	cr, tell, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	said, rw, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	cmd.ExtraFiles = []*os.File{cr, rw}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		cmd.Process.Kill()
		cmd.Wait()
		tell.Close()
		said.Close()
	})
	cr.Close()
	rw.Close()
	if _, err := io.WriteString(tell, early); err != nil {
		t.Fatal(err)
	}
	return tell, said
}

// TestEarly: an agent that was told an early configuration waits, listens meanwhile, lets in no caller, and becomes what
// its configuration says.
func TestEarly(t *testing.T) {
	cfg := agent.Config{Token: agent.NewToken(), Port: freeport.Free(t), NoCgroup: true, KernelGuardsInit: true, User: "12345"}
	early, err := json.Marshal(cfg.Early())
	if err != nil {
		t.Fatal(err)
	}
	if bytes.Contains(early, []byte("12345")) || bytes.Contains(early, cfg.Token) {
		t.Fatalf("an early configuration has %s", early)
	}
	tell, said := waiting(t, string(early)+"\n")
	if err := said.SetReadDeadline(time.Now().Add(500 * time.Millisecond)); err != nil {
		t.Fatal(err)
	}
	if n, err := said.Read(make([]byte, 1)); !os.IsTimeout(err) {
		t.Fatalf("it says %d bytes before its configuration, %v", n, err)
	}
	_ = said.SetReadDeadline(time.Time{})
	data, err := cfg.Marshal()
	if err != nil {
		t.Fatal(err)
	}
	half := len(data) / 2 // it may arrive in parts
	for _, part := range [][]byte{data[:half], data[half:]} {
		if _, err := tell.Write(part); err != nil {
			t.Fatal(err)
		}
		time.Sleep(20 * time.Millisecond)
	}
	tell.Close()
	if b, err := io.ReadAll(said); err != nil || len(b) != 1 {
		t.Fatalf("it is not ready: %q, %v", b, err)
	}
	in := &inside{addr: "127.0.0.1:" + strconv.Itoa(cfg.Port), port: cfg.Port, token: cfg.Token}
	res, err := in.connect(t).Exec(t.Context(), start("/usr/bin/id", "-u"))
	if err != nil || strings.TrimSpace(string(res.Stdout)) != "12345" {
		t.Errorf("%+v, %v", res, err)
	}
}

// TestEarlyEnds: an agent whose configuration ends before it came, or is malformed, says so and ends.
func TestEarlyEnds(t *testing.T) {
	early := agent.Config{Port: freeport.Free(t), NoCgroup: true, KernelGuardsInit: true}
	line, err := json.Marshal(early)
	if err != nil {
		t.Fatal(err)
	}
	for name, tc := range map[string][2]string{
		"gone":                {string(line) + "\n", ""},
		"no early one":        {"{\n", ""},
		"a list":              {"[]\n", ""},
		"no token":            {string(line) + "\n", "{}"},
		"two early ones":      {string(line) + "\n" + string(line) + "\n", ""},
		"an early one at all": {string(line), ""},
	} {
		t.Run(strings.ReplaceAll(name, " ", "_"), func(t *testing.T) {
			tell, said := waiting(t, tc[0])
			_, _ = io.WriteString(tell, tc[1])
			tell.Close()
			if b, err := io.ReadAll(said); err != nil || !strings.HasPrefix(string(b), "agent: ") {
				t.Errorf("it says %q, %v", b, err)
			}
		})
	}
}
