package cli

import (
	"archive/tar"
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/cloche-dev/cloche/api"
)

const someDigest = "sha256:0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"

// image plays the images of a daemon. Bodies are kept in files["body"].
func (f *fakeDaemon) image(w http.ResponseWriter, r *http.Request, p string) {
	used := time.Now().Add(-2 * time.Hour)
	tool := api.Image{Name: "tool:1", Digest: someDigest, SizeBytes: 3 << 20, Source: "registry", UsedAt: &used, Notes: []string{"the pipe of /p is left out"}}
	switch r.Method + " " + p {
	case "GET /images":
		answer(w, api.ImageList{Images: []api.Image{{Name: "host", Description: "this machine"}, tool}})
	case "GET /images/inspect":
		answer(w, tool)
	case "POST /images/pull", "POST /images/pack":
		f.keep(r)
		w.Header().Set("Content-Type", "application/x-ndjson")
		for _, m := range f.pulls {
			answer(w, api.ServerMessage{Pull: &m})
		}
		answer(w, api.ServerMessage{Image: &tool})
	case "POST /images/import":
		f.keep(r)
		answer(w, tool)
	case "DELETE /images":
		w.WriteHeader(http.StatusNoContent)
	case "POST /images/prune":
		f.keep(r)
		answer(w, api.ImagePruneResult{Removed: []api.Image{tool}, FreedBytes: 5 << 20, UsedBytes: 1 << 20})
	default:
		http.NotFound(w, r)
	}
}

// keep notes the body of a request.
func (f *fakeDaemon) keep(r *http.Request) {
	data, err := io.ReadAll(r.Body)
	if err != nil {
		f.t.Errorf("read body: %v", err)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.files["body"] = string(data)
}

func TestImageVerbs(t *testing.T) {
	f := newFake(t)
	home := f.listen()
	for _, tc := range []struct{ args, out, asked, body string }{
		{"image ls", "NAME    DIGEST        SIZE   SOURCE    USED\nhost                  0 B              -\ntool:1  0123456789ab  3 MiB  registry  2h\n", "GET /v1/images", ""},
		{"image ls -q", "host\ntool:1\n", "GET /v1/images", ""},
		{"image rm 0123456789ab", "", "DELETE /v1/images?image=" + url.QueryEscape(someDigest), ""},
		{"image rm sha256:0123456789ab", "", "DELETE /v1/images?image=" + url.QueryEscape(someDigest), ""},
		{"image rm 0123456789ac", "", "DELETE /v1/images?image=0123456789ac", ""},
		{"image prune --all", "tool:1 " + someDigest + "\nfreed 5 MiB; images occupy 1 MiB\n", "POST /v1/images/prune", `{"max_bytes":0}`},
		{"image pull --platform linux/arm64 -q tool:1", "tool:1 " + someDigest + "\n", "POST /v1/images/pull", `{"image":"tool:1","platform":"linux/arm64"}`},
		{"image pack -q --cmd sh --workdir /srv base /bin/sh /usr/bin/env", "tool:1 " + someDigest + "\n", "POST /v1/images/pack",
			`{"name":"base","paths":["/bin/sh","/usr/bin/env"],"config":{"working_dir":"/srv","cmd":["sh"]}}`},
		{"image prune --max 1GiB --dry-run", "tool:1 " + someDigest + "\nwould free 5 MiB; images occupy 1 MiB\n", "POST /v1/images/prune", `{"max_bytes":1073741824,"dry_run":true}`},
		{"image prune --max 0", "tool:1 " + someDigest + "\nfreed 5 MiB; images occupy 1 MiB\n", "POST /v1/images/prune", `{"max_bytes":0}`},
		{"image prune", "tool:1 " + someDigest + "\nfreed 5 MiB; images occupy 1 MiB\n", "POST /v1/images/prune", `{}`},
		{"image rm a:1 b:1", "", "DELETE /v1/images?image=b%3A1", ""},
		{"image rm --json a:1", `{"removed":"a:1"}` + "\n", "DELETE /v1/images?image=a%3A1", ""},
		{"image import -q --name x --format tar -", "tool:1 " + someDigest + "\n", "POST /v1/images/import?format=tar&name=x", "an archive"},
	} {
		got := runCLI(t, homeEnv(home), strings.NewReader("an archive"), nil, strings.Fields(tc.args)...)
		if (got != result{0, tc.out, ""}) {
			t.Errorf("%s: %+v, want %q", tc.args, got, tc.out)
		}
		f.mu.Lock()
		body := f.files["body"]
		delete(f.files, "body")
		f.mu.Unlock()
		if !f.asked(tc.asked) || body != tc.body {
			t.Errorf("%s: asked with %q, want %q", tc.args, body, tc.body)
		}
	}
	for args, into := range map[string]any{
		"image pull --json tool:1": &api.Image{}, "image inspect --json tool:1": &api.Image{}, "image prune --json --max 0": &api.ImagePruneResult{},
	} {
		got := runCLI(t, homeEnv(home), nil, nil, strings.Fields(args)...)
		d := json.NewDecoder(strings.NewReader(got.out))
		d.DisallowUnknownFields()
		if err := d.Decode(into); err != nil || got.err != "" || strings.Count(got.out, "\n") != 1 {
			t.Errorf("%s: %v in %+v", args, err, got)
		}
	}
	for _, args := range []string{"image pull", "image pull a b", "image rm", "image inspect", "image build", "image pack name", "image import", "image prune x", "image prune --max much", "image prune --all --max 1GiB"} {
		if got := runCLI(t, homeEnv(home), nil, nil, strings.Fields(args)...); got.status != 125 || !strings.Contains(got.err, "hint: ") {
			t.Errorf("%s: %+v", args, got)
		}
	}
}

// TestWordsOfOtherPrograms: who knows these from elsewhere is told what they are here.
func TestWordsOfOtherPrograms(t *testing.T) {
	f := newFake(t)
	home := f.listen()
	for args, hint := range map[string]string{
		"image images": `"cloche image ls"`, "image rmi x": `"cloche image rm"`,
	} {
		if got := runCLI(t, homeEnv(home), nil, nil, strings.Fields(args)...); got.status != 125 || !strings.Contains(got.err, "did you mean "+hint) {
			t.Errorf("%s: %+v", args, got)
		}
	}
}

// TestImportOfADirectory: owners, modes and hard links are sent as they are.
func TestImportOfADirectory(t *testing.T) {
	f := newFake(t)
	home := f.listen()
	dir := t.TempDir()
	err := errors.Join(
		os.Mkdir(filepath.Join(dir, "bin"), 0o755), os.WriteFile(filepath.Join(dir, "bin", "a"), []byte("program"), 0o755),
		os.Chmod(filepath.Join(dir, "bin", "a"), 0o755|os.ModeSetuid), os.Link(filepath.Join(dir, "bin", "a"), filepath.Join(dir, "bin", "b")),
		os.Symlink("a", filepath.Join(dir, "bin", "c")),
	)
	if err != nil {
		t.Skipf("needs a filesystem with links: %v", err)
	}
	if got := runCLI(t, homeEnv(home), nil, nil, "image", "import", "--name", "x", dir); got.status != 0 {
		t.Fatalf("%+v", got)
	}
	kinds := map[string]string{}
	r := tar.NewReader(bytes.NewReader([]byte(f.files["body"])))
	for {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		kinds[h.Name] = string(h.Typeflag) + h.Linkname
		if h.Name == "bin/a" && (h.Mode != 0o4755 || h.Uid != os.Getuid()) {
			t.Errorf("%s has mode %o, owner %d", h.Name, h.Mode, h.Uid)
		}
	}
	if want := map[string]string{"bin/": "5", "bin/a": "0", "bin/b": "1bin/a", "bin/c": "2a"}; !reflect.DeepEqual(kinds, want) {
		t.Errorf("sent %v, want %v", kinds, want)
	}
}

func TestRunOfAnImage(t *testing.T) {
	f := newFake(t)
	f.program = func(*fakeProgram) api.Result { return exited(0) }
	f.pulls = []api.PullProgress{{Image: "tool:1", Phase: api.PullResolve}}
	home := f.listen()
	if got := runCLI(t, homeEnv(home), nil, nil, "run", "--image", "tool:1", "--pull", "always"); got.status != 0 {
		t.Errorf("without a command: %+v", got)
	}
	if f.run.Exec.Argv != nil || f.run.Spec.Image != "tool:1" || f.run.Spec.Pull != api.PullAlways {
		t.Errorf("asked %+v", f.run)
	}
	for _, args := range []string{"run", "run --image host"} {
		if got := runCLI(t, homeEnv(home), nil, nil, strings.Fields(args)...); got.status != 125 || !strings.Contains(got.err, "no command") {
			t.Errorf("%s: %+v", args, got)
		}
	}
	if got := runCLI(t, homeEnv(home), nil, nil, "create", "--image", "tool:1"); got.out != "box\n" || !strings.Contains(got.err, "tool:1: asking the registry") {
		t.Errorf("create: %+v", got)
	}
	if got := runCLI(t, homeEnv(home), nil, nil, "create", "--json", "--image", "tool:1"); got.err != "" {
		t.Errorf("create --json: %+v", got)
	}
}
