//go:build linux

package langbot

import (
	"archive/zip"
	"bytes"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/cloche-dev/cloche/internal/audit"
	"github.com/cloche-dev/cloche/internal/core"
	"github.com/cloche-dev/cloche/internal/policy/rules"
	"github.com/cloche-dev/cloche/internal/skill"
)

// withSkills is an API server to a fixture that keeps skills, and the directory that relative
// paths begin at.
func withSkills(t *testing.T) (*server, string) {
	t.Helper()
	work := t.TempDir()
	log, err := audit.Open(audit.Options{Home: t.TempDir(), Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = log.Close() })
	store := skill.Open(filepath.Join(work, "b", "skills"))
	fixture := core.New(core.Options{Skills: store, Audit: log, Logger: slog.New(slog.DiscardHandler), Rules: rules.Rules{}})
	d := newServer(t, func(o *Options) {
		o.WorkDir, o.Config = work, `{"local":{"host_root":"b"}}`
		o.Core.(*fakeCore).SkillVerbs, o.Core.(*fakeCore).SkillFileVerbs = fixture, fixture
	})
	return d, work
}

// upload sends a file as the client does, and returns its key.
func (d *server) upload(data []byte) string {
	d.t.Helper()
	sum := sha256.Sum256(data)
	key := hex.EncodeToString(sum[:])[:16] + "-" + hex.EncodeToString(sum[16:]) + ".zip"
	amount := max(1, (len(data)+chunkBytes-1)/chunkBytes)
	for i := range amount {
		part := data[i*chunkBytes : min(len(data), (i+1)*chunkBytes)]
		d.must("__file_chunk", nil, obj{
			"file_key": key, "file_length": len(data), "chunk_base64": base64.StdEncoding.EncodeToString(part), "chunk_index": i, "chunk_amount": amount, "chunk_size": len(part),
		})
	}
	return key
}

// member is one entry of an archive.
type member struct {
	name, text string
	mode       os.FileMode
}

func zipped(t *testing.T, members ...member) []byte {
	t.Helper()
	var out bytes.Buffer
	z := zip.NewWriter(&out)
	for _, m := range members {
		h := &zip.FileHeader{Name: m.name, Method: zip.Deflate}
		if m.mode == 0 {
			m.mode = 0o644
		}
		h.SetMode(m.mode)
		w, err := z.CreateHeader(h)
		if err == nil {
			_, err = io.WriteString(w, m.text)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	if err := z.Close(); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

func skillText(name string) string {
	return "---\nname: " + name + "\ndescription: d\nlicense: MIT\n---\n\nDo it.\n"
}

// names are those of the skills of a placement.
func (d *server) names(p *placement) string {
	d.t.Helper()
	var out []string
	for _, s := range d.must("box_list_skills", p, obj{})["skills"].([]any) {
		out = append(out, s.(obj)["name"].(string))
	}
	slices.Sort(out)
	return strings.Join(out, " ")
}

func TestSkillsOverTheWire(t *testing.T) {
	d, work := withSkills(t)
	p, other := &placement{"inst-1", "ws-1", 1}, &placement{"inst-1", "ws-2", 1}
	shelf := filepath.Join(work, "b", "skills", "tenants", p.durable())
	archive := zipped(t, member{"pkg/SKILL.md", skillText("zed"), 0}, member{"pkg/run.sh", "echo", 0o755}, member{"pkg/requirements.txt", "", 0})
	seen := d.must("box_preview_skill_zip", p, obj{"file_key": d.upload(archive), "filename": "my pkg.zip"})["skills"].([]any)
	if len(seen) != 1 || seen[0].(obj)["source_path"] != "" || seen[0].(obj)["package_root"] != shelf+"/my-pkg-upload" {
		t.Errorf("the preview is %v", seen)
	}
	if got := d.names(p); got != "" {
		t.Errorf("a preview installs %s", got)
	}
	key := d.upload(archive)
	made := d.must("box_install_skill_zip", p, obj{"file_key": key, "filename": "my pkg.zip"})["skills"].([]any)
	got := made[0].(obj)
	keys := slices.Sorted(maps.Keys(got))
	if strings.Join(keys, " ") != "created_at description display_name entry_file instructions name package_root python_project updated_at" {
		t.Errorf("a skill has %v", keys)
	}
	if got["name"] != "zed" || got["display_name"] != "zed" || got["description"] != "d" || got["instructions"] != "Do it." || got["entry_file"] != "SKILL.md" ||
		got["python_project"] != true || got["package_root"] != shelf+"/my-pkg-upload" || !strings.HasSuffix(got["updated_at"].(string), "+00:00") {
		t.Errorf("%v", got)
	}
	d.refused("BoxValidationError: file_key", "box_install_skill_zip", p, obj{"file_key": key, "filename": "again.zip"})
	// Another workspace has none of it.
	if got := d.names(other); got != "" {
		t.Errorf("another workspace has %s", got)
	}
	if r := d.must("box_get_skill", other, obj{"name": "zed"}); r["skill"] != nil {
		t.Errorf("%v", r)
	}
	for action, data := range map[string]obj{
		"box_read_skill_file": {"name": "zed", "path": "SKILL.md"}, "box_write_skill_file": {"name": "zed", "path": "x", "content": "x"},
		"box_delete_skill": {"name": "zed"}, "box_update_skill": {"name": "zed", "skill": obj{"description": "x"}}, "box_scan_skill_directory": {"path": shelf + "/my-pkg-upload"},
	} {
		d.refused("BoxValidationError: ", action, other, data)
	}
	// What a change does not name stays, and what a skill is does not change.
	d.must("box_update_skill", p, obj{"name": "zed", "skill": obj{"name": "zed", "description": "other", "package_root": shelf + "/my-pkg-upload"}})
	text := d.must("box_read_skill_file", p, obj{"name": "zed", "path": "SKILL.md"})
	if content := text["content"].(string); !strings.Contains(content, "license: MIT") || !strings.Contains(content, "description: other") || !strings.Contains(content, "Do it.") {
		t.Errorf("%q", content)
	}
	d.refused("BoxValidationError: skill.name", "box_update_skill", p, obj{"name": "zed", "skill": obj{"name": "y"}})
	d.refused("BoxValidationError: skill.package_root", "box_update_skill", p, obj{"name": "zed", "skill": obj{"package_root": shelf}})
	if r := d.must("box_write_skill_file", p, obj{"name": "zed", "path": "notes/é.txt", "content": "é"}); r["bytes_written"] != 2.0 {
		t.Errorf("%v", r)
	}
	d.must("box_write_skill_file", p, obj{"name": "zed", "path": ".hidden", "content": ""})
	listed := d.must("box_list_skill_files", p, obj{"name": "zed", "path": "."})
	if fmt.Sprint(listed["entries"]) != "[map[is_dir:false name:SKILL.md path:SKILL.md size:"+fmt.Sprint(len(text["content"].(string)))+"] map[is_dir:true name:notes path:notes size:<nil>] map[is_dir:false name:requirements.txt path:requirements.txt size:0] map[is_dir:false name:run.sh path:run.sh size:4]]" ||
		listed["base_path"] != "." || listed["truncated"] != false {
		t.Errorf("%v", listed)
	}
	if r := d.must("box_list_skill_files", p, obj{"name": "zed", "include_hidden": true, "max_entries": 2}); len(r["entries"].([]any)) != 2 || r["truncated"] != true {
		t.Errorf("%v", r)
	}
	d.refused("BoxValidationError: max_entries", "box_list_skill_files", p, obj{"name": "zed", "max_entries": 0})
	for _, bad := range []string{"../x", "/etc/passwd", "notes/../../x", ""} {
		d.refused("BoxValidationError: ", "box_read_skill_file", p, obj{"name": "zed", "path": bad})
		d.refused("BoxValidationError: ", "box_write_skill_file", p, obj{"name": "zed", "path": bad, "content": "x"})
	}
	if r := d.must("box_scan_skill_directory", p, obj{"path": shelf + "/my-pkg-upload"}); r["name"] != "zed" {
		t.Errorf("%v", r)
	}
	if r := d.must("box_delete_skill", p, obj{"name": "zed"}); r["deleted"] != "zed" || d.names(p) != "" {
		t.Errorf("%v", r)
	}
}

// A package may come from the workspace's own directory, and from nowhere else.
func TestSkillsFromADirectory(t *testing.T) {
	d, work := withSkills(t)
	p, other := &placement{"inst-1", "ws-1", 1}, &placement{"inst-1", "ws-2", 1}
	dir := func(p *placement) string { return filepath.Join(work, "b", "default", "tenants", p.durable(), "made") }
	for _, at := range []string{dir(p), dir(other)} {
		if err := os.MkdirAll(at, 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(at, "SKILL.md"), []byte(skillText("theirs")), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	// LangBot scans it first, and makes the skill of what the scan names.
	if seen := d.must("box_scan_skill_directory", p, obj{"path": dir(p)}); seen["name"] != "theirs" || seen["package_root"] != dir(p) || seen["instructions"] != "Do it." {
		t.Errorf("the scan: %v", seen)
	}
	if seen := d.must("box_scan_skill_directory", p, obj{"path": filepath.Dir(dir(p))}); seen["package_root"] != dir(p) {
		t.Errorf("the scan of the directory above: %v", seen)
	}
	for _, bad := range []string{dir(other), "/etc", dir(p) + "/../../../.."} {
		d.refused("BoxValidationError: path: ", "box_scan_skill_directory", p, obj{"path": bad})
	}
	made := d.must("box_create_skill", p, obj{"skill": obj{"name": "mine", "package_root": dir(p)}})["skill"].(obj)
	if made["name"] != "mine" || made["description"] != "d" || made["instructions"] != "Do it." {
		t.Errorf("%v", made)
	}
	if r := d.must("box_create_skill", p, obj{"skill": obj{"name": "text", "instructions": "Think."}})["skill"].(obj); r["instructions"] != "Think." {
		t.Errorf("%v", r)
	}
	for name, bad := range map[string]obj{
		"another's directory": {"name": "x", "package_root": dir(other)}, "the host's": {"name": "x", "package_root": "/etc"}, "above its own": {"name": "x", "package_root": dir(p) + "/../../../.."},
		"a name that is taken": {"name": "mine"}, "no name": {"name": "a b"}, "out of the skills": {"name": "../x"},
	} {
		if r := d.ask("box_create_skill", p, obj{"skill": bad}); !strings.HasPrefix(r.Message, "BoxValidationError: ") {
			t.Errorf("%s: %+v", name, r)
		}
	}
	if got := d.names(p); got != "mine text" {
		t.Errorf("the skills are %s", got)
	}
}

// What a sandbox or an archive put where a skill is read leads nowhere.
func TestHostileSkills(t *testing.T) {
	d, work := withSkills(t)
	p := &placement{"inst-1", "ws-1", 1}
	d.must("box_create_skill", p, obj{"skill": obj{"name": "own", "instructions": "Think."}})
	secret := filepath.Join(work, "secret")
	if err := os.WriteFile(secret, []byte(skillText("stolen")), 0o600); err != nil {
		t.Fatal(err)
	}
	root := filepath.Join(work, "b", "skills", "tenants", p.durable(), "own")
	for name, to := range map[string]string{"SKILL.md": secret, "link.txt": secret, "dir": work} {
		_ = os.Remove(filepath.Join(root, name))
		if err := os.Symlink(to, filepath.Join(root, name)); err != nil {
			t.Fatal(err)
		}
	}
	if got := d.names(p); got != "" {
		t.Errorf("the skills are %s", got)
	}
	if r := d.must("box_get_skill", p, obj{"name": "own"}); r["skill"] != nil {
		t.Errorf("%v", r)
	}
	d.refused("BoxValidationError: ", "box_update_skill", p, obj{"name": "own", "skill": obj{"description": "x"}})
	d.must("box_create_skill", p, obj{"skill": obj{"name": "other"}})
	root = filepath.Join(filepath.Dir(root), "other")
	if err := os.Symlink(secret, filepath.Join(root, "link.txt")); err != nil {
		t.Fatal(err)
	}
	d.refused("BoxValidationError: ", "box_read_skill_file", p, obj{"name": "other", "path": "link.txt"})
	d.must("box_write_skill_file", p, obj{"name": "other", "path": "link.txt", "content": "x"}) // takes the link's place
	if fi, err := os.Lstat(filepath.Join(root, "link.txt")); err != nil || !fi.Mode().IsRegular() {
		t.Errorf("%v, %v", fi, err)
	}
	many := make([]member, 100_000)
	for i := range many {
		many[i] = member{name: fmt.Sprint(i)}
	}
	skill := member{"SKILL.md", skillText("bad"), 0}
	for name, archive := range map[string][]byte{
		"a member above": zipped(t, skill, member{"../x", "x", 0}), "one above with backslashes": zipped(t, skill, member{`..\x`, "x", 0}), "an absolute one": zipped(t, skill, member{"/x", "x", 0}),
		"a symlink": zipped(t, skill, member{"link", secret, os.ModeSymlink | 0o777}), "100,000 members": zipped(t, append(many, skill)...),
		"a bomb": zipped(t, skill, member{"zeros", strings.Repeat("\x00", 8<<20), 0}), "no zip": []byte("PK nothing"), "nothing": nil,
	} {
		for _, action := range []string{"box_install_skill_zip", "box_preview_skill_zip"} {
			if len(archive) > 1<<20 && action == "box_preview_skill_zip" {
				continue // it takes long to send
			}
			if r := d.ask(action, p, obj{"file_key": d.upload(archive), "filename": "bad.zip"}); !strings.HasPrefix(r.Message, "BoxValidationError: ") {
				t.Errorf("%s, %s: %+v", name, action, r)
			}
		}
	}
	if got := d.names(p); got != "other" {
		t.Errorf("the skills are %s", got)
	}
	if data, err := os.ReadFile(secret); err != nil || string(data) != skillText("stolen") {
		t.Errorf("%q, %v", data, err)
	}
}

// Of several packages those are installed that are named, and all or none; 20 MiB come
// whole.
func TestArchivesOfSkills(t *testing.T) {
	d, _ := withSkills(t)
	p := &placement{"inst-1", "ws-1", 1}
	two := zipped(t, member{"repo/skills/a/SKILL.md", skillText("a"), 0}, member{"repo/skills/b/SKILL.md", skillText("b"), 0})
	install := func(more obj) reply {
		t.Helper()
		more["file_key"], more["filename"] = d.upload(two), "repo-v1.zip"
		return d.ask("box_install_skill_zip", p, more)
	}
	for name, bad := range map[string]obj{"none named": {}, "one that is not there": {"source_paths": []string{"skills/a", "skills/c"}}, "a subdirectory that is not there": {"source_subdir": "other"}} {
		if r := install(bad); !strings.HasPrefix(r.Message, "BoxValidationError: ") {
			t.Errorf("%s: %+v", name, r)
		}
	}
	if got := d.names(p); got != "" {
		t.Errorf("the skills are %s", got)
	}
	if r := install(obj{"source_path": "skills/a", "target_suffix": ""}); r.Code != 0 || !strings.HasSuffix(r.Data["skills"].([]any)[0].(obj)["package_root"].(string), "/repo-v1-a") {
		t.Errorf("%+v", r)
	}
	if r := install(obj{"source_subdir": "/skills/", "source_paths": []string{"b"}}); r.Code != 0 || !strings.HasSuffix(r.Data["skills"].([]any)[0].(obj)["package_root"].(string), "/repo-v1-b-upload") {
		t.Errorf("%+v", r)
	}
	noise := make([]byte, 10_000_000)
	if _, err := rand.Read(noise); err != nil {
		t.Fatal(err)
	}
	large := zipped(t, member{"SKILL.md", skillText("large"), 0}, member{"a", string(noise), 0}, member{"b", string(noise), 0})
	if len(large) > 20<<20 || len(large) < 19<<20 {
		t.Fatalf("the archive has %d bytes", len(large))
	}
	made := d.must("box_install_skill_zip", p, obj{"file_key": d.upload(large), "filename": "large.zip"})["skills"].([]any)[0].(obj)
	if data, err := os.ReadFile(filepath.Join(made["package_root"].(string), "b")); err != nil || !bytes.Equal(data, noise) {
		t.Errorf("%d bytes, %v", len(data), err)
	}
}
