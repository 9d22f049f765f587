//go:build linux

package envd_test

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestFilesystem(t *testing.T) {
	f := newFixture(t)
	f.put(t, "file", "hello")
	f.put(t, "tree/a/deep/er", "x")
	f.put(t, "tree/b", "x")
	for link, target := range map[string]string{"link": "file", "broken": "nowhere", "loop": "loop", "todir": "tree", "chain": "link", "tree/up": "../todir/b"} {
		if err := os.Symlink(target, filepath.Join(f.dir, link)); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Chmod(filepath.Join(f.dir, "file"), 0o640); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		method, body string
		status       int
		want         []string // parts of the answer
	}{
		{"Stat", `{"path":"file"}`, 200, []string{`"name":"file"`, `"type":"FILE_TYPE_FILE"`, `"path":"HOME/file"`, `"size":"5"`, `"mode":416`, `"permissions":"-rw-r-----"`, `"owner":"`, `"modifiedTime":"2`}},
		{"Stat", `{"path":"~/tree"}`, 200, []string{`"FILE_TYPE_DIRECTORY"`, `"drwxr-xr-x"`}},
		{"Stat", `{"path":"link","unknownField":1}`, 200, []string{`"FILE_TYPE_FILE"`, `"mode":416`, `"permissions":"Lrwxrwxrwx"`, `"symlinkTarget":"HOME/file"`, `"isSymlink":true`}},
		{"Stat", `{"path":"chain"}`, 200, []string{`"symlinkTarget":"HOME/file"`}},
		{"Stat", `{"path":"tree/up"}`, 200, []string{`"symlinkTarget":"HOME/tree/b"`}},
		{"Stat", `{"path":"broken"}`, 200, []string{`"symlinkTarget":"HOME/broken"`}},
		{"Stat", `{"path":"nope"}`, 404, []string{`"not_found"`, `file not found: HOME/nope`}},
		{"Stat", `{"path":"~other"}`, 400, []string{`"invalid_argument"`}},
		{"Stat", `{"path":"a\u0000"}`, 400, []string{`"invalid_argument"`}},
		{"MakeDir", `{"path":"new/dir"}`, 200, []string{`"path":"HOME/new/dir"`, `"mode":493`}},
		{"MakeDir", `{"path":"new/dir"}`, 409, []string{`"already_exists"`}},
		{"MakeDir", `{"path":"file"}`, 400, []string{`"invalid_argument"`}},
		{"MakeDir", `{"path":"file/x"}`, 500, []string{`"internal"`}},
		{"ListDir", `{"path":"tree"}`, 200, []string{`"entries"`, `HOME/tree/a"`, `HOME/tree/b"`, `HOME/tree/up"`}},
		{"ListDir", `{"path":"todir","depth":2}`, 200, []string{`"path":"HOME/todir/a/deep"`}},
		{"ListDir", `{"path":"file"}`, 400, []string{`"invalid_argument"`}},
		{"ListDir", `{"path":"nope"}`, 404, []string{`"not_found"`}},
		{"ListDir", `{"path":"loop"}`, 400, []string{`"failed_precondition"`}},
		{"Move", `{"source":"tree/b","destination":"new/place/b"}`, 200, []string{`"path":"HOME/new/place/b"`}},
		{"Move", `{"source":"nope","destination":"x"}`, 404, []string{`"not_found"`}},
		{"Remove", `{"path":"tree"}`, 200, []string{`{}`}},
		{"Remove", `{"path":"tree"}`, 200, []string{`{}`}},
	} {
		status, got := f.unary(t, "filesystem.Filesystem/"+c.method, c.body)
		text, err := json.Marshal(got)
		if err != nil {
			t.Fatal(err)
		}
		for _, want := range c.want {
			if want = strings.ReplaceAll(want, "HOME", f.dir); status != c.status || !strings.Contains(string(text), want) {
				t.Errorf("%s %s: %d %s, want %d %s", c.method, c.body, status, text, c.status, want)
			}
		}
	}
}

// A list is in the order of names, each directory before its content.
func TestListDirOrder(t *testing.T) {
	f := newFixture(t)
	for _, name := range []string{"b/2", "b/1/x", "a", "c/d/e/f"} {
		f.put(t, name, "")
	}
	for depth, want := range map[string]string{"0": "a b c", "1": "a b c", "2": "a b b/1 b/2 c c/d", "9": "a b b/1 b/1/x b/2 c c/d c/d/e c/d/e/f"} {
		_, got := f.unary(t, "filesystem.Filesystem/ListDir", `{"path":".","depth":`+depth+`}`)
		var names []string
		for _, e := range got["entries"].([]any) {
			names = append(names, strings.TrimPrefix(e.(map[string]any)["path"].(string), f.dir+"/"))
		}
		if strings.Join(names, " ") != want {
			t.Errorf("depth %s: %v, want %s", depth, names, want)
		}
	}
}
