package cli

import (
	"encoding/json"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/cli/command"
)

const someKey = "clk_0123456789abcdef_0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a"

// keys plays the keys and the policy of a daemon. Bodies are kept in files["body"].
func (f *fakeDaemon) keys(w http.ResponseWriter, r *http.Request, p string) {
	used, gone := time.Now().Add(-time.Minute), time.Now().Add(-time.Hour)
	one := api.Key{ID: "key-1", Tenant: "red", Name: "ci", Verbs: []string{"list", "run"}, Profiles: []string{"agent"}, CreatedAt: gone, LastUsedAt: &used}
	switch r.Method + " " + p {
	case "POST /keys":
		f.keep(r)
		answer(w, api.NewKey{Key: one, Secret: someKey})
	case "GET /keys":
		ended := api.Key{ID: "key-0", Tenant: "blue", CreatedAt: gone, RevokedAt: &gone}
		expired := api.Key{ID: "key-2", Tenant: "blue", CreatedAt: gone, ExpiresAt: &gone}
		answer(w, api.KeyList{Keys: []api.Key{one, ended, expired}})
	case "DELETE /keys/key-1":
		answer(w, one)
	case "POST /policy/explain":
		f.keep(r)
		refusal := api.Errorf(api.CodeDenied, "image x is not allowed").WithHint("allow it")
		refusal.Rule = "images"
		answer(w, api.PolicyAnswer{
			Verb: "run", Tenant: "red", Refusal: refusal, Steps: []api.PolicyStep{{Name: "profile"}, {Name: "images", Refused: true}},
			Grants: []api.PolicyGrant{{Field: "profile", Rule: "builtin"}},
		})
	default:
		http.NotFound(w, r)
	}
}

func TestKeyVerbs(t *testing.T) {
	f := newFake(t)
	home := f.listen()
	for _, tc := range []struct {
		args   string
		status int
		out    string
		asked  string
		body   string
	}{
		{"key create --tenant red", 0, someKey + "\n", "POST /v1/keys", `{"tenant":"red"}`},
		{"key create --tenant red --name ci --verb run --verb list --profile agent --expires 2h", 0, someKey + "\n", "POST /v1/keys",
			`{"tenant":"red","name":"ci","verbs":["run","list"],"profiles":["agent"],"expires_in_ms":7200000}`},
		{"key create", 125, "", "", ""},
		{"key create --tenant red --expires 0", 125, "", "", ""},
		{"key ls", 0, "ID     TENANT  NAME  FOR                      STATE           LAST USED\nkey-1  red     ci    list,run; profile agent  good            1m ago\n" +
			"key-0  blue    -     everything               revoked 1h ago  never\nkey-2  blue    -     everything               expired 1h ago  never\n", "GET /v1/keys", ""},
		{"key revoke key-1", 0, "", "DELETE /v1/keys/key-1", ""},
		{"key revoke " + someKey, 125, "", "", ""},
	} {
		f.files["body"] = ""
		res := runCLI(t, nil, nil, nil, append([]string{"--home", home}, strings.Fields(tc.args)...)...)
		if res.status != tc.status || res.out != tc.out {
			t.Errorf("%s: status %d, %q, %q", tc.args, res.status, res.out, res.err)
		}
		if tc.asked != "" && !f.asked(tc.asked) || f.files["body"] != tc.body {
			t.Errorf("%s: sent %s", tc.args, f.files["body"])
		}
		if strings.Contains(res.err, "0a0a") || f.asked("DELETE /v1/keys/clk_") {
			t.Errorf("%s: the key is told: %q", tc.args, res.err)
		}
	}
}

func TestPolicyExplain(t *testing.T) {
	f := newFake(t)
	home := f.listen()
	res := runCLI(t, nil, nil, nil, "--home", home, "policy", "explain", "--tenant", "red", "--image", "x", "--", "ls", "-l")
	want := "refused: run for tenant red\n  why: image x is not allowed\n  rule: images\n  hint: allow it\n  profile: by builtin\n  refused by the check \"images\"\n  passed: profile\n"
	if res.status != 126 || res.out != want {
		t.Errorf("status %d: %s%s", res.status, res.out, res.err)
	}
	var q api.PolicyQuestion
	if err := json.Unmarshal([]byte(f.files["body"]), &q); err != nil || q.Verb != "run" || q.Tenant != "red" || q.Spec.Image != "x" || strings.Join(q.Exec.Argv, " ") != "ls -l" {
		t.Errorf("asked %s: %v", f.files["body"], err)
	}
	file := filepath.Join(t.TempDir(), "policy.yaml")
	if err := os.WriteFile(file, []byte("images: [x]"), 0o600); err != nil {
		t.Fatal(err)
	}
	ask := func(e *command.Env) {
		e.ExplainPolicy = func(data []byte, q api.PolicyQuestion) (api.PolicyAnswer, error) {
			return api.PolicyAnswer{Allowed: string(data) == "images: [x]" && q.Spec.Image == "x", Verb: "create", Operator: true, Assumed: []string{"all is well"}}, nil
		}
	}
	res = runCLI(t, nil, nil, ask, "policy", "explain", "--file", file, "--image", "x")
	if res.status != 0 || res.out != "allowed: create for the operator\n  assumed: all is well\n" {
		t.Errorf("status %d: %s%s", res.status, res.out, res.err)
	}
}

func TestPolicyCheck(t *testing.T) {
	check := func(e *command.Env) {
		e.CheckPolicy = func(data []byte) []api.PolicyProblem {
			if string(data) == "good" {
				return nil
			}
			return []api.PolicyProblem{{Line: 3, Column: 7, Message: "it is\x1b[31m wrong", Hint: "mend it", Key: "a"}, {Line: 4, Column: 1, Warning: true, Message: "odd"}}
		}
	}
	for _, tc := range []struct {
		in, out string
		json    bool
		status  int
	}{
		{"good", "", false, 0},
		{"good", `{"problems":[]}` + "\n", true, 0},
		{"bad", "-:3:7: error: it is\uFFFD[31m wrong (mend it)\n-:4:1: warning: odd\n", false, 1},
	} {
		args := []string{"policy", "check", "-"}
		if tc.json {
			args = append(args, "--json")
		}
		res := runCLI(t, nil, strings.NewReader(tc.in), check, args...)
		if res.status != tc.status || res.out != tc.out {
			t.Errorf("%s: status %d, %q, %q", tc.in, res.status, res.out, res.err)
		}
	}
	if res := runCLI(t, nil, strings.NewReader("x"), nil, "policy", "check", "-"); res.status != 125 {
		t.Errorf("without rules of its own: status %d", res.status)
	}
}
