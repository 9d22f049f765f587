//go:build linux

package e2e_test

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/client"
	"github.com/cloche-dev/cloche/test/fixture"
	"github.com/cloche-dev/cloche/test/tarfile"
)

// buildPrograms are the programs of the image that tests build on.
var buildPrograms = []string{
	"/bin/sh", "/bin/cat", "/bin/ls", "/bin/mkdir", "/bin/rm", "/bin/ln", "/bin/chmod", "/bin/chown", "/bin/mv", "/usr/bin/touch",
	"/bin/sleep", "/usr/bin/stat", "/usr/bin/id", "/usr/bin/env", "/usr/bin/find", "/usr/bin/head", "/usr/bin/wc",
}

// builds builds images on one engine.
type builds struct {
	*testing.T
	h      *fixture.Fixture
	c      *client.Client
	engine string
}

// built is what a build said.
type built struct {
	img      api.Image
	steps    []api.BuildStep
	output   string
	warnings []string
}

// ran are the numbers of the steps that did not come from the cache.
func (b built) ran() (numbers []int) {
	for _, s := range b.steps {
		if !s.Cached {
			numbers = append(numbers, s.Number)
		}
	}
	return numbers
}

func (b builds) try(ctx context.Context, req api.ImageBuildRequest, files ...tarfile.Member) (out built, err error) {
	req.Sandbox.Engine = b.engine
	var body *bytes.Buffer
	if files != nil {
		body = tarfile.Pack(b.T, files...)
	}
	tell := func(e api.BuildEvent) error {
		if e.Step != nil {
			out.steps = append(out.steps, *e.Step)
		}
		if e.Warning != "" {
			out.warnings = append(out.warnings, e.Warning)
		}
		out.output += string(e.Data)
		return nil
	}
	if body == nil {
		out.img, err = b.c.BuildImage(ctx, req, nil, tell)
	} else {
		out.img, err = b.c.BuildImage(ctx, req, body, tell)
	}
	return out, err
}

func (b builds) build(req api.ImageBuildRequest, files ...tarfile.Member) built {
	b.Helper()
	out, err := b.try(b.Context(), req, files...)
	if err != nil {
		b.Fatalf("build %s: %v\n%s", req.Name, err, out.output)
	}
	return out
}

// run runs a sandbox of an image and returns what its command writes to stdout.
func (b builds) run(image string, args ...string) string {
	b.Helper()
	out, err := b.h.Command(append([]string{"run", "--engine", b.engine, "--image", image}, args...)...).Output()
	if err != nil {
		b.Errorf("run %s %q: %v", image, args, err)
	}
	return string(out)
}

// shell runs a script in a sandbox of an image.
func (b builds) shell(image, script string) string {
	b.Helper()
	return b.run(image, "--", "/bin/sh", "-c", script)
}

func newBuilds(t *testing.T, engine string) builds {
	h := fixture.New(t)
	c, err := client.New(client.Options{Host: "unix://" + h.Socket()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	h.Must(append([]string{"image", "pack", "-q", "base:1"}, buildPrograms...)...)
	return builds{t, h, c, engine}
}

// onBuildEngines runs f on each engine that this user has.
func onBuildEngines(t *testing.T, f func(b builds)) {
	fixture.OnEnginesAnyUser(t, func(t *testing.T, engine string) {
		b := newBuilds(t, engine)
		if out, status := b.h.Try("run", "--engine", engine, "--image", "base:1", "--", "/bin/sh", "-c", "true"); status != 0 && os.Geteuid() != 0 && strings.Contains(out, "is not usable") {
			t.Skipf("needs engine %s, which is not usable for this user: %s", engine, out)
		} else if status != 0 {
			t.Fatalf("status %d: %s", status, out)
		}
		f(b)
	})
}

// TestBuildImage builds images from Dockerfiles.
func TestBuildImage(t *testing.T) {
	onBuildEngines(t, func(b builds) {
		b.stages()
		b.changes()
		b.adds()
		b.mounts()
		b.refusals()
		b.commit()
		b.h.Left()
	})
}

const stagesFile = `ARG BASE=base:1
FROM ${BASE} AS build
WORKDIR /src
COPY a.txt sub /src/
ENV GREETING=hello
ARG WHO=world
RUN echo "$GREETING $WHO" > out.txt && echo kept > /tmp/kept
RUN cat /tmp/kept && (sleep 1000 &) && ln out.txt out2.txt && ln -s out.txt link
RUN <<EOT
#!/usr/bin/env sh
echo "a script: $(ls /proc/[0-9]*/cmdline | while read f; do head -c 5 $f 2>/dev/null; echo; done | while read p; do case $p in sleep*) echo left;; esac; done)"
EOT
FROM base:1
LABEL team=red
COPY --from=build --chmod=640 --chown=7:8 /src/out.txt /data/
COPY --from=build /src /whole
COPY <<EOT /data/inline
some text
EOT
USER 7:8
WORKDIR /data
CMD ["cat", "inline"]
`

// stages: stages, the cache, and what a build takes from its context.
func (b builds) stages() {
	b.Helper()
	files := []tarfile.Member{
		tarfile.Regular("a.txt", "A"), tarfile.Regular("sub/b.txt", "B"), tarfile.Regular("sub/x/c.txt", "C"), tarfile.Regular("unused", "1"),
	}
	req := api.ImageBuildRequest{Name: "app:1", Dockerfile: stagesFile, Args: map[string]string{"WHO": "you"}, Labels: map[string]string{"built": "yes"}}
	first := b.build(req, files...)
	if !strings.Contains(first.output, "kept\n") || !strings.Contains(first.output, "a script: \n") {
		b.Errorf("the output: %q", first.output)
	}
	if n := len(first.steps); n != 14 || len(first.ran()) != n {
		b.Errorf("%d steps, of which %v ran", n, first.ran())
	}
	if c := first.img.Config; c == nil || c.Labels["team"] != "red" || c.Labels["built"] != "yes" || c.User != "7:8" || c.WorkingDir != "/data" {
		b.Errorf("the configuration: %+v", c)
	}
	if out := b.run("app:1", "--user", "0"); out != "some text\n" {
		b.Errorf("its command: %q", out)
	}
	got := b.run("app:1", "--user", "0", "--", "/bin/sh", "-c",
		"cat /data/out.txt; stat -c '%a %u %g' /data/out.txt; cd /whole; cat a.txt b.txt x/c.txt; readlink link 2>/dev/null; stat -c %h out.txt; ls /src 2>&1 | head -c 2; ls /tmp")
	owner := "7 8"
	if os.Geteuid() != 0 {
		owner = "0 0"
	}
	if want := "hello you\n640 " + owner + "\nABC"; !strings.HasPrefix(got, want) || !strings.Contains(got, "2\nls") {
		b.Errorf("its files: %q", got)
	}
	again := b.build(req, files...)
	if again.img.Digest != first.img.Digest {
		b.Errorf("the same build is image %s, and was %s", again.img.Digest, first.img.Digest)
	}
	// What only changes the configuration has no layer.
	for _, s := range again.steps {
		word, _, _ := strings.Cut(s.Text, " ")
		if makes := word == "RUN" || word == "COPY" || word == "WORKDIR"; s.Cached != makes {
			b.Errorf("step %d, %s: cached %v", s.Number, word, s.Cached)
		}
	}
	// A file that no step copies changes nothing; one that a step copies runs it and what follows.
	files[3] = tarfile.Regular("unused", "2")
	if other := b.build(req, files...); other.img.Digest != first.img.Digest {
		b.Error("a file that is not copied changes the image")
	}
	req.Args["WHO"] = "them"
	if ran := b.build(req, files...).ran(); slices.Contains(ran, 1) || slices.Contains(ran, 2) || !slices.Contains(ran, 5) || !slices.Contains(ran, 6) {
		b.Errorf("another argument runs %v", ran)
	}
	req.Target = "build"
	if out := b.build(req, files...); len(out.ran()) > 2 || out.img.Digest == first.img.Digest {
		b.Errorf("the stage build: %v ran", out.ran())
	}
	req.Target, req.NoCache = "", true
	if out := b.build(req, files...); len(out.ran()) != len(out.steps) {
		b.Errorf("without the cache, %v of %d ran", out.ran(), len(out.steps))
	}
}

// Cases that not every engine and user has.
const (
	setID  = "set-id bits"
	owners = "modes and owners"
)

// adds: ADD unpacks archives, and copies other files as they are.
func (b builds) adds() {
	b.Helper()
	inner := tarfile.Pack(b.T, tarfile.Regular("in/x", "packed")).Bytes()
	var zipped bytes.Buffer
	z := gzip.NewWriter(&zipped)
	if _, err := z.Write(inner); err != nil || z.Close() != nil {
		b.Fatal(err)
	}
	var text bytes.Buffer
	z = gzip.NewWriter(&text)
	if _, err := z.Write([]byte("a text")); err != nil || z.Close() != nil {
		b.Fatal(err)
	}
	req := api.ImageBuildRequest{Name: "added:1", Dockerfile: `FROM base:1
ADD plain.txt a.tar b.tar.gz c.gz d/ /added/
COPY a.tar /kept/
COPY --chmod=700 p*.txt /many/
COPY --from=host /etc/passwd /of-host
WORKDIR sub
COPY plain.txt renamed
`}
	b.build(req, tarfile.Regular("plain.txt", "plain"), tarfile.Regular("a.tar", string(inner)), tarfile.Regular("b.tar.gz", zipped.String()),
		tarfile.Regular("c.gz", text.String()), tarfile.Regular("d/e/f", "deep"), tarfile.Regular("p2.txt", "second"))
	got := b.shell("added:1", "cat /added/plain.txt /added/in/x /added/e/f; ls /added /kept; stat -c '%a %n' /many/*; cat /sub/renamed; head -c 4 /of-host; pwd")
	if want := "plainpackeddeep/added:\nc.gz\ne\nin\nplain.txt\n\n/kept:\na.tar\n700 /many/p2.txt\n700 /many/plain.txt\nplainroot/sub\n"; got != want {
		b.Errorf("%q, want %q", got, want)
	}
}

// changes: what a layer holds of a change.
func (b builds) changes() {
	b.Helper()
	for _, tc := range []struct{ name, do, then, want string }{
		{"a file keeps its time and its size", "echo one > /f; touch -d @1000 /f\nRUN echo two > /f; touch -d @1000 /f", "cat /f; stat -c %Y /f", "two\n1000\n"},
		{"removed", "echo x > /f; mkdir -p /d/e; echo y > /d/e/g\nRUN rm -r /f /d", "ls -d /f /d 2>/dev/null; echo gone", "gone\n"},
		{"removed from the base", "rm /usr/bin/wc", "ls /usr/bin/wc 2>/dev/null; echo gone", "gone\n"},
		{"a directory becomes a file", "mkdir -p /d; echo x > /d/f\nRUN rm -r /d; echo file > /d", "cat /d", "file\n"},
		{"a file becomes a directory", "echo x > /d\nRUN rm /d; mkdir /d; echo y > /d/f", "cat /d/f", "y\n"},
		{"a directory is moved", "mkdir -p /a/b; echo x > /a/b/f\nRUN mv /a /z", "ls -d /a 2>/dev/null; cat /z/b/f", "x\n"},
		{"moved over another", "mkdir /a /c; echo new > /a/f; echo old > /c/f; echo old > /c/g\nRUN rm -r /c; mv /a /c", "cat /c/f; ls /c", "new\nf\n"},
		{owners, "echo x > /f; chmod 751 /f; mkdir -m 1777 /d; chown 5:6 /d", "stat -c '%a %u %g' /f /d", "751 0 0\n1777 5 6\n"},
		{setID, "echo x > /f; chmod 4751 /f; mkdir -m 2755 /d", "stat -c %a /f /d", "4751\n2755\n"},
		{"only a mode", "echo x > /f\nRUN chmod 600 /f", "stat -c %a /f", "600\n"},
		{"a hard link of a file of the step before", "echo link > /f\nRUN ln /f /g", "stat -c %h /f /g", "2\n2\n"},
		{"hard links", "echo x > /f; ln /f /g\nRUN echo more >> /f", "cat /g; stat -c %h /g", "x\nmore\n2\n"},
		{"a symlink to elsewhere", "ln -s /nowhere/else /l; ln -s . /m", "stat -c %N /l /m", "'/l' -> '/nowhere/else'\n'/m' -> '.'\n"},
		{"names of any bytes", `printf x > "$(printf '/a\nb \303\251')"`, `cat "$(printf '/a\nb \303\251')"`, "x"},
		{"a hole", "head -c 1 /dev/zero > /f; : > /e", "stat -c %s /f /e", "1\n0\n"},
		{"files of the sandbox", "echo nameserver 9.9.9.9 > /etc/resolv.conf; echo mine > /etc/hostname; echo yes > /etc/own", "cat /etc/own; ls /etc | head -c 0", "yes\n"},
		{"what only tmp has", "echo x > /tmp/f\nRUN cat /tmp/f > /f", "cat /f", "x\n"},
	} {
		if os.Geteuid() != 0 && (tc.name == owners || tc.name == setID) {
			continue // all files belong to one user, and an engine may unpack images without these bits
		}
		out, err := b.try(b.Context(), api.ImageBuildRequest{Name: "changed:1", Dockerfile: "FROM base:1\nRUN " + tc.do + "\n"})
		if err != nil {
			b.Errorf("%s: %v\n%s", tc.name, err, out.output)
			continue
		}
		if got := b.shell("changed:1", tc.then); got != tc.want {
			b.Errorf("%s: %q, want %q", tc.name, got, tc.want)
		}
	}
}

// mounts: caches, secrets and other mounts of RUN leave nothing in the image.
func (b builds) mounts() {
	b.Helper()
	const value = "a-secret-value-of-a-build"
	req := api.ImageBuildRequest{Name: "mounts:1", NoCache: true, Secrets: []api.BuildSecret{{ID: "tok", Value: api.Bytes(value)}}, Dockerfile: `FROM base:1
RUN --mount=type=cache,target=/cache/x,id=own --mount=type=secret,id=tok --mount=type=secret,id=tok,env=TOK --mount=type=secret,id=other \
  wc -c < /run/secrets/tok; echo "${#TOK}"; cat /cache/x/n 2>/dev/null; echo one >> /cache/x/n; echo "$PWD"
RUN --mount=type=tmpfs,target=/scratch --mount=type=bind,source=.,target=/ctx cat /ctx/f; echo x > /scratch/y
RUN ls -d /cache /scratch /ctx /run/secrets 2>/dev/null; echo "end ${TOK:-unset}"
RUN mkdir -p /has/sub && echo own > /has/sub/own && touch -d @1000 /has/sub/own /has/sub /has
RUN --mount=type=cache,target=/has,id=has mkdir -p /has/more && echo x > /has/more/x && echo y > /has/sub/y
RUN find /has -type f
`}
	first, second := b.build(req, tarfile.Regular("f", "from the context\n")), b.build(req, tarfile.Regular("f", "from the context\n"))
	if want := fmt.Sprintf("%d\n%d\n/\nfrom the context\nend unset\n/has/sub/own\n", len(value), len(value)); first.output != want {
		b.Errorf("the first: %q, want %q", first.output, want)
	}
	if !strings.Contains(second.output, "\none\n/\n") {
		b.Errorf("the cache is not there again: %q", second.output)
	}
	if first.img.Digest != second.img.Digest {
		b.Error("the mounts changed the image")
	}
	// The files of a bind mount are what the step depends on.
	req.NoCache = false
	if ran := b.build(req, tarfile.Regular("f", "from the context\n")).ran(); len(ran) > 0 {
		b.Errorf("the same files run %v", ran)
	}
	if out := b.build(req, tarfile.Regular("f", "changed\n")); !strings.Contains(out.output, "changed\n") || slices.Contains(out.ran(), 1) {
		b.Errorf("other files run %v: %q", out.ran(), out.output)
	}
	gone := api.ImageBuildRequest{Name: "mounts:2", Dockerfile: "FROM base:1\nRUN --mount=type=cache,target=/gone --mount=type=tmpfs,target=/too rm -r /gone /too"}
	if out := b.build(gone); len(out.warnings) != 1 || !strings.Contains(out.warnings[0], "/gone") {
		b.Errorf("a cache that the program removes: %q", out.warnings)
	}
	err := filepath.WalkDir(b.h.Dir, func(path string, d os.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() {
			return nil
		}
		data, err := os.ReadFile(path)
		if err == nil && bytes.Contains(data, []byte(value)) {
			b.Errorf("the secret is in %s", path)
		}
		return nil
	})
	if err != nil {
		b.Error(err)
	}
}

// refusals: what a build cannot do, and what became of it.
func (b builds) refusals() {
	b.Helper()
	before := b.h.Must("image", "ls", "-q")
	files := []tarfile.Member{
		tarfile.Regular("f", "x"), {Header: tar.Header{Typeflag: tar.TypeSymlink, Name: "out", Linkname: "/etc/shadow"}},
		{Header: tar.Header{Typeflag: tar.TypeSymlink, Name: "up", Linkname: "../../../../etc/passwd"}},
		{Header: tar.Header{Typeflag: tar.TypeSymlink, Name: "loop", Linkname: "loop"}},
	}
	for _, tc := range []struct {
		text, want string
		code       api.Code
	}{
		{"FROM base:1\nRUN exit 3", "line 2: RUN exit 3: exit status 3", api.CodeState},
		{"FROM base:1\nRUN kill -9 $$", "line 2: RUN kill -9 $$: ", api.CodeState},
		{"FROM base:1\nRUN [\"/no/such/program\"]", "/no/such/program", api.CodeCommandNotFound},
		{"FROM base:1\nUSER nobody-here\nRUN true", "nobody-here", api.CodeInvalid},
		{"FROM base:1\nCOPY out /x", "not in what is copied from", api.CodeInvalid},
		{"FROM base:1\nCOPY up /x", "not in what is copied from", api.CodeInvalid},
		{"FROM base:1\nCOPY loop /x", "lead nowhere", api.CodeUnsupported},
		{"FROM base:1\nCOPY ../../etc/shadow /x", "not in what is copied from", api.CodeInvalid},
		{"FROM base:1\nCOPY nothing* /x", "not in what is copied from", api.CodeInvalid},
		{"FROM base:1\nADD http://127.0.0.1:1/x /x", "ADD gets nothing from the network", api.CodeUnsupported},
		{"FROM base:1\nRUN --mount=type=ssh true", "ssh isn't supported", api.CodeUnsupported},
		{"FROM base:1\nRUN --network=host true", "--network isn't supported", api.CodeUnsupported},
		{"FROM base:1\nRUN --mount=type=secret,id=none,required=true true", "needs the secret", api.CodeInvalid},
		{"FROM base:1\nRUN --mount=type=tmpfs,target=/usr true", "would hide what the image has", api.CodeUnsupported},
		{"FROM base:1\nONBUILD RUN true", "ONBUILD", api.CodeUnsupported},
		{"FROM base:1\nNONSENSE", "unknown instruction", api.CodeInvalid},
		{"FROM $EMPTY\nRUN true", "the base is empty", api.CodeInvalid},
		{"", "either dockerfile or packages", api.CodeInvalid},
	} {
		out, err := b.try(b.Context(), api.ImageBuildRequest{Name: "refused:1", Dockerfile: tc.text}, files...)
		if api.CodeOf(err) != tc.code || !strings.Contains(fmt.Sprint(err), tc.want) {
			b.Errorf("%q: %v, want %s: %s\n%s", tc.text, err, tc.code, tc.want, out.output)
		}
	}
	for name, code := range map[string]api.Code{"host": api.CodeInvalid, "Bad Name": api.CodeInvalid, "x@sha256:" + strings.Repeat("0", 64): api.CodeInvalid} {
		if _, err := b.try(b.Context(), api.ImageBuildRequest{Name: name, Dockerfile: "FROM base:1\nENV A=b"}); api.CodeOf(err) != code {
			b.Errorf("the name %q: %v", name, err)
		}
	}
	// A caller that leaves ends the build.
	ctx, cancel := context.WithCancel(b.Context())
	defer cancel()
	_, err := b.c.BuildImage(ctx, api.ImageBuildRequest{Name: "left:1", Dockerfile: "FROM base:1\nRUN echo begun; sleep 1000", Sandbox: api.BuildSandbox{Engine: b.engine}}, nil, func(e api.BuildEvent) error {
		if strings.Contains(string(e.Data), "begun") {
			cancel()
		}
		return nil
	})
	if api.CodeOf(err) != api.CodeCanceled {
		b.Errorf("a caller that leaves: %v", err)
	}
	if !fixture.Poll(func() bool { return len(b.h.Names()) == 0 }) {
		b.Errorf("sandboxes are left: %q", b.h.Names())
	}
	if after := b.h.Must("image", "ls", "-q"); after != before {
		b.Errorf("images are left: %q, and were %q", after, before)
	}
}

// commit: an image of a sandbox has what was changed in it.
func (b builds) commit() {
	b.Helper()
	b.h.Must("create", "--engine", b.engine, "--image", "base:1", "--name", "box")
	b.h.Must("exec", "box", "--", "/bin/sh", "-c", "echo changed > /f; rm /usr/bin/wc; chmod 700 /usr/bin/stat; echo t > /tmp/t; echo w > /workspace/w")
	b.h.Must("image", "commit", "--cmd", "cat", "--cmd", "/f", "--env", "A=b", "box", "committed:1")
	b.h.Must("rm", "-f", "box")
	if out := b.run("committed:1"); out != "changed\n" {
		b.Errorf("its command: %q", out)
	}
	if out := b.shell("committed:1", "ls /usr/bin/wc /workspace 2>/dev/null; stat -c %a /usr/bin/stat; echo $A"); out != "/workspace:\n700\nb\n" {
		b.Errorf("its files: %q", out)
	}
	archive := filepath.Join(b.TempDir(), "image.tar")
	b.h.Must("image", "export", "-o", archive, "committed:1")
	b.h.Must("image", "import", "-q", "--name", "again:1", archive)
	if out := b.run("again:1"); out != "changed\n" {
		b.Errorf("what was exported and imported: %q", out)
	}
	if b.engine == "docker" {
		b.dockerLoads(archive, "committed:1", "changed\n")
	}
	for _, name := range []string{"again:1", "committed:1"} {
		b.h.Must("image", "rm", name)
	}
}

// dockerLoads has Docker itself load an archive and run the image's command.
func (b builds) dockerLoads(archive, image, want string) {
	b.Helper()
	docker := func(args ...string) string {
		out, err := exec.CommandContext(b.Context(), "docker", append([]string{"-H", os.Getenv("CLOCHE__DOCKER__HOST")}, args...)...).CombinedOutput()
		if err != nil {
			b.Errorf("docker %q: %v", args, err)
		}
		return string(out)
	}
	if out := docker("load", "-i", archive); !strings.Contains(out, image) {
		b.Errorf("docker load: %q", out)
	}
	if out := docker("run", "--rm", "--network", "none", "docker.io/library/"+image); out != want {
		b.Errorf("docker run: %q", out)
	}
}

// TestBuildAsTenant: a tenant builds images of its own, of what it may use, and no other tenant sees them.
func TestBuildAsTenant(t *testing.T) {
	h := fixture.NotStarted(t)
	h.Must(append([]string{"image", "pack", "-q", "base:1"}, buildPrograms...)...)
	h.Must("image", "pack", "-q", "private:1", "/bin/sh")
	if err := os.WriteFile(filepath.Join(h.Dir, "policy.yaml"), []byte("images: [\"base:*\"]\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	addr := startListening(h, strings.Repeat("t", 40))
	as := func(tenant string) builds {
		var key struct{ Secret string }
		if err := json.Unmarshal([]byte(h.Must("key", "create", "--tenant", tenant, "--json")), &key); err != nil {
			t.Fatal(err)
		}
		c, err := client.New(client.Options{Host: addr, Token: key.Secret})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = c.Close() })
		return builds{t, h, c, "gvisor"}
	}
	red, blue := as("red"), as("blue")
	text := "FROM base:1\nRUN echo red > /f; touch -d @1000 /f\nRUN cat /f\n"
	img := red.build(api.ImageBuildRequest{Name: "cloche.local/red/app:1", Dockerfile: text}).img
	for name, want := range map[string]struct {
		req  api.ImageBuildRequest
		code api.Code
	}{
		"a name of everyone":       {api.ImageBuildRequest{Name: "app:1", Dockerfile: text}, api.CodeDenied},
		"a name of another tenant": {api.ImageBuildRequest{Name: "cloche.local/blue/app:1", Dockerfile: text}, api.CodeDenied},
		"a prefix of its name":     {api.ImageBuildRequest{Name: "cloche.local/redder/app:1", Dockerfile: text}, api.CodeDenied},
		"a base that it lacks":     {api.ImageBuildRequest{Name: "cloche.local/red/x:1", Dockerfile: "FROM private:1\nRUN true"}, api.CodeDenied},
		"one to copy from":         {api.ImageBuildRequest{Name: "cloche.local/red/x:1", Dockerfile: "FROM base:1\nCOPY --from=private:1 /bin/sh /x"}, api.CodeDenied},
		"one by its digest":        {api.ImageBuildRequest{Name: "cloche.local/red/x:1", Dockerfile: "FROM cloche.local/blue/none:1\nRUN true"}, api.CodeDenied},
	} {
		if _, err := red.try(t.Context(), want.req); api.CodeOf(err) != want.code {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := blue.try(t.Context(), api.ImageBuildRequest{Name: "cloche.local/blue/x:1", Dockerfile: "FROM cloche.local/red/app:1\nRUN true"}); api.CodeOf(err) != api.CodeDenied {
		t.Errorf("the image of another tenant as a base: %v", err)
	}
	if err := blue.c.ExportImage(t.Context(), img.Digest, io.Discard); api.CodeOf(err) != api.CodeNotFound {
		t.Errorf("the image of another tenant by its digest: %v", err)
	}
	if _, err := blue.c.Create(t.Context(), api.SandboxSpec{Image: "cloche.local/red/app:1"}); api.CodeOf(err) != api.CodeDenied {
		t.Errorf("a sandbox of it: %v", err)
	}
	list, err := blue.c.Images(t.Context())
	if err != nil || slices.ContainsFunc(list.Images, func(i api.Image) bool { return strings.Contains(i.Name, "red") || i.Name == "private:1" }) {
		t.Errorf("another tenant sees %+v, %v", list, err)
	}
	// The cache of one tenant says nothing about another's builds.
	if out := blue.build(api.ImageBuildRequest{Name: "cloche.local/blue/app:1", Dockerfile: text}); len(out.ran()) != 2 {
		t.Errorf("another tenant's build takes %v from the cache", out.steps)
	}
	// Both have the same files now, and so one image with two names.
	for name, b := range map[string]builds{"red": red, "blue": blue} {
		if got, err := b.c.InspectImage(t.Context(), img.Digest); err != nil || got.Name != "cloche.local/"+name+"/app:1" {
			t.Errorf("%s sees the image as %q, %v", name, got.Name, err)
		}
	}
	if sb, err := red.c.Create(t.Context(), api.SandboxSpec{Image: "cloche.local/red/app:1", Name: "box"}); err != nil {
		t.Error(err)
	} else if _, err := red.c.CommitImage(t.Context(), sb.ID, api.ImageCommitRequest{Name: "app:2"}); api.CodeOf(err) != api.CodeDenied {
		t.Errorf("a commit with a name of everyone: %v", err)
	} else if _, err := red.c.CommitImage(t.Context(), sb.ID, api.ImageCommitRequest{Name: "cloche.local/red/app:2"}); err != nil {
		t.Error(err)
	}
	if _, err := blue.c.CommitImage(t.Context(), "box", api.ImageCommitRequest{Name: "cloche.local/blue/box:1"}); api.CodeOf(err) != api.CodeNotFound {
		t.Errorf("the sandbox of another tenant: %v", err)
	}
}
