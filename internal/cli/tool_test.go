package cli

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/cloche-dev/cloche/api"
)

// TestTools: what each asks, and what is shown of the answer.
func TestTools(t *testing.T) {
	for name, tc := range map[string]struct {
		args       string
		stdin      string
		answer     any
		path, body string
		out, err   string
	}{
		"read": {
			args: "read --first 2 --lines 1 box main.go", answer: api.ToolText{Path: "/workspace/main.go", Content: "a\x1b[2J\nb", FirstLine: 2, Lines: 2, More: true},
			path: "read", body: `{"path":"main.go","first_line":2,"lines":1}`, out: "a\uFFFD[2J\nb\n", err: "there is more from line 4 on",
		},
		"read what is no text": {
			args: "read box bin", answer: api.ToolText{Path: "/workspace/bin", Binary: true, Size: 2048},
			path: "read", body: `{"path":"bin","first_line":1,"lines":2000}`, err: "/workspace/bin is no text and has 2 KiB",
		},
		"write": {
			args: "write --root /srv box a/f", stdin: "héllo", answer: api.ToolWritten{Path: "/srv/a/f", Created: true},
			path: "write", body: `{"root":"/srv","path":"a/f","content":"héllo"}`, out: "/srv/a/f\n",
		},
		"edit": {
			args: "edit --all box f old new", answer: api.ToolWritten{Path: "/workspace/f", Line: 7, Replaced: 2},
			path: "edit", body: `{"path":"f","old":"old","new":"new","all":true}`, out: "/workspace/f:7: replaced 2\n",
		},
		"glob": {
			args: "glob --limit 2 box **/*.go src", answer: api.ToolFiles{Files: []api.ToolFile{{Path: "/workspace/src/a.go"}, {Path: "/workspace/src/b\n.go"}}, Partial: api.PartialMatches},
			path: "glob", body: `{"path":"src","pattern":"**/*.go","limit":2}`, out: "/workspace/src/a.go\n", err: "there may be more: the search ended at its bound of matches",
		},
		"glob of all": {args: "glob box *", answer: api.ToolFiles{}, path: "glob", body: `{"pattern":"*","limit":100}`},
		"grep": {
			args: "grep -F -i --include *.go box a[0] src", path: "grep",
			answer: api.ToolLines{Matches: []api.ToolMatch{{Path: "/workspace/src/a.go", Line: 3, Text: "a[0] = 1"}}, Binary: []string{"/workspace/src/bin"}, Unread: []string{"/workspace/src/large"}, Partial: api.PartialTime},
			body:   `{"path":"src","pattern":"a[0]","fixed":true,"ignore_case":true,"include":"*.go","limit":200}`,
			out:    "/workspace/src/a.go:3:a[0] = 1\n", err: "/workspace/src/bin is no text|/workspace/src/large was not looked into|there may be more: the search ended at its bound of time",
		},
		"by who asks": {
			args: "read --identity launcher_id=42 @ f", answer: api.ToolText{}, path: "read", body: `{"identity":{"launcher_id":"42"},"path":"f","first_line":1,"lines":2000}`,
		},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFake(t)
			ref := "box"
			if strings.Contains(tc.args, " @ ") {
				ref = api.RefByNaming
			}
			what := "POST /sandboxes/" + ref + "/tools/" + tc.path
			f.answers[what] = tc.answer
			home := f.listen()
			args := append([]string{"tool"}, strings.Fields(strings.ReplaceAll(tc.args, " @ ", " "+ref+" "))...)
			got := runCLI(t, homeEnv(home), strings.NewReader(tc.stdin), nil, args...)
			if got.status != 0 || !strings.HasPrefix(got.out, tc.out) || tc.out == "" && got.out != "" {
				t.Errorf("%+v", got)
			}
			for says := range strings.SplitSeq(tc.err, "|") {
				if !strings.Contains(got.err, says) || tc.err == "" && got.err != "" {
					t.Errorf("it does not say %q: %q", says, got.err)
				}
			}
			if body := strings.TrimSpace(f.bodies[what]); body != tc.body {
				t.Errorf("it asks %s\nwant    %s (of %v)", body, tc.body, f.requests)
			}
			// As JSON it is the answer, and nothing is cleaned.
			got = runCLI(t, homeEnv(home), strings.NewReader(tc.stdin), nil, append(args, "--json")...)
			want, _ := json.Marshal(tc.answer)
			if got.status != 0 || strings.TrimSpace(got.out) != string(want) {
				t.Errorf("%+v, want %s", got, want)
			}
		})
	}
}

func TestToolsThatAreRefused(t *testing.T) {
	f := newFake(t)
	f.refuse["POST /sandboxes/box/tools/read"] = api.Invalid("path", "a symlink leads out of it")
	home := f.listen()
	for name, tc := range map[string]struct {
		args  []string
		stdin string
		says  string
	}{
		"by the daemon":       {[]string{"read", "box", "leak"}, "", "a symlink leads out of it"},
		"no path":             {[]string{"read", "box"}, "", "a sandbox and a path"},
		"too many":            {[]string{"glob", "box", "*", "a", "b"}, "", "a sandbox, a pattern and perhaps a path"},
		"no text to write":    {[]string{"write", "box", "f"}, "\xff", "content"},
		"too much to write":   {[]string{"write", "box", "f"}, strings.Repeat("x", api.MaxToolWrite+1), "over 4194304 bytes"},
		"no text for an edit": {[]string{"edit", "box", "f", "\xff", "x"}, "", "arguments"},
		"no text for a root":  {[]string{"grep", "--root", "\xff", "box", "x"}, "", "path"},
		"no such tool":        {[]string{"sed", "box"}, "", "sed"},
		"no number":           {[]string{"read", "--lines", "many", "box", "f"}, "", "lines"},
	} {
		got := runCLI(t, homeEnv(home), strings.NewReader(tc.stdin), nil, append([]string{"tool"}, tc.args...)...)
		if got.status != 125 || got.out != "" || !strings.Contains(got.err, tc.says) {
			t.Errorf("%s: %+v", name, got)
		}
	}
	if f.asked("POST /v1/sandboxes/box/tools/write") || f.asked("POST /v1/sandboxes/box/tools/edit") {
		t.Errorf("what cannot be right was asked for: %v", f.requests)
	}
}
