package api_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/cloche-dev/cloche/api"
)

func TestBytesAreReadableAndLoseNothing(t *testing.T) {
	for in, want := range map[string]string{
		"plain":        `"plain"`,
		"":             `""`,
		"a\x00b":       `"a\u0000b"`,
		"\xff\xfe":     `{"base64":"//4="}`,
		"caf\u00e9 \n": `"café \n"`,
	} {
		got, err := json.Marshal(api.Bytes(in))
		if err != nil || string(got) != want {
			t.Errorf("Marshal(%q) = %s, %v; want %s", in, got, err, want)
		}
		var back api.Bytes
		if err := json.Unmarshal(got, &back); err != nil || string(back) != in {
			t.Errorf("Unmarshal(%s) = %q, %v; want %q", got, back, err, in)
		}
	}
	var b api.Bytes
	if err := json.Unmarshal([]byte(`12`), &b); err == nil {
		t.Error("Unmarshal(12) took a number for bytes")
	}
}

// Readers of JSON without the type Bytes find text that is not UTF-8 in its own field.
func TestResultsHaveBase64BesideWhatIsNoText(t *testing.T) {
	for _, tt := range []struct {
		in         api.Result
		stdout     string
		with, lack string
	}{
		{api.Result{Stdout: api.Bytes("text")}, "text", `"stdout":"text"`, "_b64"},
		{api.Result{Stdout: api.Bytes("a\xff")}, "a\xff", `"stdout_b64":"Yf8="`, "stderr_b64"},
		{api.Result{Stderr: api.Bytes("\xfe")}, "", `"stderr_b64":"/g=="`, "stdout_b64"},
		{api.Result{Stdout: api.Bytes("text"), StdoutB64: []byte("lies")}, "text", `"stdout":"text"`, "_b64"},
	} {
		got, err := json.Marshal(api.RunResult{Result: tt.in})
		if err != nil || !strings.Contains(string(got), tt.with) || strings.Contains(string(got), tt.lack) {
			t.Errorf("Marshal(%+v) = %s, %v; want %s and no %s", tt.in, got, err, tt.with, tt.lack)
		}
		var back api.RunResult
		if err := json.Unmarshal(got, &back); err != nil || string(back.Result.Stdout) != tt.stdout {
			t.Errorf("Unmarshal(%s) = %+v, %v", got, back.Result, err)
		}
	}
}

func FuzzBytes(f *testing.F) {
	f.Add([]byte("x"))
	f.Add([]byte{0xff})
	f.Fuzz(func(t *testing.T, in []byte) {
		j, err := json.Marshal(api.Bytes(in))
		if err != nil {
			t.Fatal(err)
		}
		var out api.Bytes
		if err := json.Unmarshal(j, &out); err != nil || !bytes.Equal(in, out) {
			t.Fatalf("%q became %q (%v) through %s", in, out, err, j)
		}
	})
}

func code(n int) *int { return &n }

func TestResultIsOKOnlyForAKnownExit0(t *testing.T) {
	for _, tc := range []struct {
		name   string
		r      *api.Result
		ok     bool
		status int
	}{
		{"exit 0", &api.Result{ExitCode: code(0)}, true, 0},
		{"exit 3", &api.Result{ExitCode: code(3)}, false, 3},
		{"unknown", &api.Result{}, false, 125},
		{"signal", &api.Result{Signal: "TERM"}, false, 143},
		{"timeout", &api.Result{TimedOut: true, Signal: "KILL"}, false, 124},
		{"lost", &api.Result{SandboxLost: true, OOM: true}, false, 125},
	} {
		if tc.r.OK() != tc.ok || tc.r.ExitStatus() != tc.status {
			t.Errorf("%s: OK %v, status %d; want %v, %d", tc.name, tc.r.OK(), tc.r.ExitStatus(), tc.ok, tc.status)
		}
	}
	var none *api.Result
	if none.OK() {
		t.Error("a nil result is OK")
	}
}

func TestOutputInterleaves(t *testing.T) {
	r := api.Result{Stdout: api.Bytes("ac"), Stderr: api.Bytes("bd"), Chunks: []api.Chunk{
		{Stream: api.Stdout, Len: 1}, {Stream: api.Stderr, Len: 1}, {Stream: api.Stdout, Len: 1},
	}}
	if got := r.Output(); got != "abcd" {
		t.Errorf("Output() = %q, want %q", got, "abcd")
	}
	r.Chunks = []api.Chunk{{Stream: api.Stderr, Len: 1 << 40}, {Stream: api.Stdout, Len: -5}}
	if got := r.Output(); len(got) != 4 {
		t.Errorf("Output() with absurd chunks = %q, want all 4 bytes once", got)
	}
}

func TestErrorsCompareByCode(t *testing.T) {
	cause := errors.New("boom")
	err := fmt.Errorf("outer: %w", api.Errorf(api.CodeDenied, "no: %w", cause).WithHint("ask"))
	if !errors.Is(err, api.ErrDenied) || errors.Is(err, api.ErrNotFound) || !errors.Is(err, cause) {
		t.Errorf("errors.Is is wrong for %v", err)
	}
	if got := api.CodeOf(err); got != api.CodeDenied {
		t.Errorf("CodeOf = %s", got)
	}
	if got := api.CodeOf(cause); got != api.CodeInternal {
		t.Errorf("CodeOf(plain) = %s, want internal", got)
	}
	j, _ := json.Marshal(api.Errorf(api.CodeDenied, "no").WithCause(errors.New("secret")))
	if strings.Contains(string(j), "secret") {
		t.Errorf("the cause is on the wire: %s", j)
	}
}

func TestEveryErrorHasAClass(t *testing.T) {
	classes := map[api.Class]bool{api.ClassInfra: true, api.ClassUser: true, api.ClassLimit: true}
	for _, c := range api.Codes() {
		if !classes[c.Class()] {
			t.Errorf("%s is of class %q", c, c.Class())
		}
	}
	for _, r := range api.TerminalReasons() {
		if !classes[r.Class()] {
			t.Errorf("%s is of class %q", r, r.Class())
		}
	}
	// Why a sandbox ended says more than what could not be done with it.
	e := api.Errorf(api.CodeState, "it is lost")
	if e.Judge() != api.ClassUser {
		t.Errorf("of a state: %s", e.Judge())
	}
	for r, want := range map[api.TerminalReason]api.Class{
		api.EndedLost: api.ClassInfra, api.EndedOOM: api.ClassLimit, api.EndedIdle: api.ClassLimit, api.EndedDeleted: api.ClassUser,
	} {
		if e.TerminalReason = r; e.Judge() != want {
			t.Errorf("of one that ended by %s: %s, want %s", r, e.Judge(), want)
		}
	}
}

func TestIdempotencyKeys(t *testing.T) {
	for key, want := range map[string]bool{
		"k": true, "rollout-17/3": true, strings.Repeat("x", 255): true, "": false, "a b": false, "a\n": false, "é": false, strings.Repeat("x", 256): false,
	} {
		if got := api.ValidIdempotencyKey(key); got != want {
			t.Errorf("%.20q: %v, want %v", key, got, want)
		}
	}
}

func TestNames(t *testing.T) {
	for name, want := range map[string]bool{
		"a": true, "a-b_c.d9": true, "": false, "-a": false, ".a": false, "A": false, "a/b": false, "a b": false,
		strings.Repeat("x", 63): true, strings.Repeat("x", 64): false, "ü": false, "a\n": false,
	} {
		if api.ValidName(name) != want {
			t.Errorf("ValidName(%q) = %v", name, !want)
		}
	}
	if a, b := api.NewID("sb-"), api.NewID("sb-"); a == b || !api.ValidName(a) {
		t.Errorf("NewID gave %q and %q", a, b)
	}
}

func TestSignalsRoundTrip(t *testing.T) {
	for n := 1; n <= 31; n++ {
		if name := api.SignalName(n); api.SignalNumber(name) != n {
			t.Errorf("signal %d is called %q, which is %d", n, name, api.SignalNumber(name))
		}
	}
	if api.SignalName(77) != "" || api.SignalNumber("NOPE") != 0 {
		t.Error("an unknown signal has a name or a number")
	}
}
