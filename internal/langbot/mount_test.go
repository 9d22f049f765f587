//go:build linux

package langbot

import (
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/cloche-dev/cloche/api"
)

// sealedDir is a directory of which the digest was made with LangBot's own code.
func sealedDir(t *testing.T, dir string) (digest string) {
	t.Helper()
	for name, f := range map[string]struct {
		text string
		mode os.FileMode
	}{
		"SKILL.md": {"---\nname: x\n---\n\nDo it.\n", 0o644}, "a/run.sh": {"echo hi\n", 0o755}, "a.txt": {"", 0o644}, "Z": {"z", 0o644},
		"b/\u2028 \"<&>\x7f\x01\n群.txt": {"é", 0o644}, ".git/config": {"x", 0o644}, "empty/.venv/x": {"x", 0o644},
	} {
		p := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(p), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(p, []byte(f.text), f.mode); err != nil {
			t.Fatal(err)
		}
		if err := os.Chmod(p, f.mode); err != nil {
			t.Fatal(err)
		}
	}
	return "sha256:6513e655cc6d332d45e7bef1da777e1e04f56aa83c5df95dd0bc38764c79833c"
}

func TestDigestOfADirectory(t *testing.T) {
	dir := t.TempDir()
	want := sealedDir(t, dir)
	if got, err := digestOf(dir); err != nil || got != want {
		t.Errorf("%s, %v", got, err)
	}
	if got, err := digestOf(t.TempDir()); err != nil || got != "sha256:8e00d1a31787e59c19fc53875e374237e940789d1de2f1bee5273985a41f4e79" {
		t.Errorf("of nothing: %s, %v", got, err)
	}
	for name, spoil := range map[string]func(dir string) error{
		"a symlink to a file":      func(dir string) error { return os.Symlink("Z", filepath.Join(dir, "l")) },
		"a symlink to a directory": func(dir string) error { return os.Symlink("a", filepath.Join(dir, "l")) },
		"a name that is no text":   func(dir string) error { return os.WriteFile(filepath.Join(dir, "\xff"), nil, 0o600) },
		"a backslash":              func(dir string) error { return os.WriteFile(filepath.Join(dir, `a\b`), nil, 0o600) },
		"too many files": func(dir string) error {
			for i := range maxSealedFiles {
				if err := os.WriteFile(filepath.Join(dir, fmt.Sprint(i)), nil, 0o600); err != nil {
					return err
				}
			}
			return nil
		},
		"too large": func(dir string) error {
			if err := os.WriteFile(filepath.Join(dir, "large"), nil, 0o600); err != nil {
				return err
			}
			return os.Truncate(filepath.Join(dir, "large"), maxSealedBytes+1)
		},
	} {
		dir := t.TempDir()
		sealedDir(t, dir)
		if err := spoil(dir); err != nil {
			t.Fatal(err)
		}
		if got, err := digestOf(dir); err == nil {
			t.Errorf("%s: %s", name, got)
		}
	}
	if got, err := digestOf(filepath.Join(dir, "none")); err == nil {
		t.Errorf("of none: %s", got)
	}
}

// A mount with a digest has that content, or is refused.
func TestMountsWithADigest(t *testing.T) {
	root := t.TempDir()
	d := newServer(t, func(o *Options) { o.Config = fmt.Sprintf(`{"local":{"allowed_mount_roots":%q}}`, root) })
	p := &placement{"inst-1", "ws-1", 1}
	dir, manifest := filepath.Join(root, "package"), filepath.Join(root, "manifest.json")
	digest := sealedDir(t, dir)
	if err := os.WriteFile(manifest, []byte("{}"), 0o600); err != nil {
		t.Fatal(err)
	}
	hex := strings.TrimPrefix(digest, "sha256:")
	create := func(mount obj) obj {
		if mount["host_path"] == nil {
			mount["host_path"] = dir
		}
		return obj{"session_id": "s", "extra_mounts": []obj{mount}}
	}
	for name, bad := range map[string]obj{
		"another digest":            {"mount_path": "/m", "mode": "ro", "content_digest": "sha256:" + strings.Repeat("0", 64)},
		"no digest":                 {"mount_path": "/m", "mode": "ro", "content_digest": "md5:" + hex},
		"capital letters":           {"mount_path": "/m", "mode": "ro", "content_digest": "sha256:" + strings.ToUpper(hex)},
		"a relative manifest":       {"mount_path": "/m", "mode": "ro", "content_digest": digest, "manifest_path": "manifest.json"},
		"no manifest":               {"mount_path": "/m", "mode": "ro", "content_digest": digest, "manifest_path": root + "/none"},
		"a manifest elsewhere":      {"mount_path": "/m", "mode": "ro", "content_digest": digest, "manifest_path": "/etc/passwd"},
		"artifacts, undigested":     {"mount_path": artifactRoot + "/" + hex, "mode": "ro"},
		"artifacts to write":        {"mount_path": artifactRoot + "/" + hex, "mode": "rw", "content_digest": digest, "manifest_path": manifest},
		"artifacts, no manifest":    {"mount_path": artifactRoot + "/" + hex, "mode": "ro", "content_digest": digest},
		"artifacts of another name": {"mount_path": artifactRoot + "/x", "mode": "ro", "content_digest": digest, "manifest_path": manifest},
		"all artifacts":             {"mount_path": artifactRoot, "mode": "ro", "content_digest": digest, "manifest_path": manifest},
	} {
		r := d.ask("box_create_session", p, create(bad))
		if !strings.HasPrefix(r.Message, "BoxValidationError: extra_mounts") {
			t.Errorf("%s: %+v", name, r)
		}
	}
	at := obj{"mount_path": artifactRoot + "/" + hex, "mode": "ro", "content_digest": digest, "manifest_path": manifest}
	first := d.must("box_create_session", p, create(at))
	d.core.mu.Lock()
	spec := d.core.live[first["backend_session_id"].(string)]
	d.core.mu.Unlock()
	if len(spec.Mounts) != 1 || spec.Mounts[0].Source != dir || spec.Mounts[0].Target != artifactRoot+"/"+hex || !spec.Mounts[0].ReadOnly {
		t.Errorf("%+v", spec.Mounts)
	}
	if again := d.must("box_create_session", p, create(at)); again["backend_session_id"] != first["backend_session_id"] {
		t.Error("the same mount is another session")
	}
	// The digest is part of what a mount is.
	delete(at, "manifest_path")
	at["mount_path"] = "/m"
	with := d.must("box_create_session", p, create(at))
	delete(at, "content_digest")
	if without := d.must("box_create_session", p, create(at)); with["backend_session_id"] == without["backend_session_id"] {
		t.Error("a mount with a digest and one without are the same")
	}
	if err := os.WriteFile(filepath.Join(dir, "Z"), []byte("y"), 0o644); err != nil {
		t.Fatal(err)
	}
	at["content_digest"] = digest
	d.refused("BoxValidationError: extra_mounts: content_digest: ", "box_create_session", p, create(at))
}

// A quota of a workspace is held by the kernel where it can, and looked after elsewhere.
func TestQuotaOfAWorkspace(t *testing.T) {
	root := t.TempDir()
	d := newServer(t, func(o *Options) { o.Config = fmt.Sprintf(`{"local":{"allowed_mount_roots":%q}}`, root) })
	p := &placement{"inst-1", "ws-1", 1}
	made := func(id string, more obj) api.Workspace {
		t.Helper()
		more["session_id"], more["workspace_quota_mb"] = id, 5
		ref := d.must("box_create_session", p, more)["backend_session_id"].(string)
		d.core.mu.Lock()
		defer d.core.mu.Unlock()
		w := *d.core.live[ref].Workspace
		w.Path = ""
		return w
	}
	if got, want := made("own", obj{}), (api.Workspace{SizeBytes: 5 << 20}); !reflect.DeepEqual(got, want) {
		t.Errorf("%+v", got)
	}
	if got, want := made("dir", obj{"host_path": root}), (api.Workspace{Dir: root, SizeBytes: 5 << 20, Quota: api.QuotaMeasured}); !reflect.DeepEqual(got, want) {
		t.Errorf("%+v", got)
	}
	if got, want := made("read", obj{"host_path": root, "host_path_mode": "ro"}), (api.Workspace{Dir: root, ReadOnly: true}); !reflect.DeepEqual(got, want) {
		t.Errorf("%+v", got)
	}
	d.core.mu.Lock()
	d.core.refuse = func(spec api.SandboxSpec) error {
		if spec.Workspace.SizeBytes > 0 && spec.Workspace.Quota != api.QuotaMeasured {
			e := api.Errorf(api.CodeUnsupported, "this machine cannot hold it")
			e.Field = "workspace.size_bytes"
			return e
		}
		return nil
	}
	d.core.mu.Unlock()
	if got, want := made("here", obj{}), (api.Workspace{SizeBytes: 5 << 20, Quota: api.QuotaMeasured}); !reflect.DeepEqual(got, want) {
		t.Errorf("%+v", got)
	}
	// Too much is a mistake of the request's to the client.
	d.core.mu.Lock()
	d.core.refuse = func(api.SandboxSpec) error { return api.Errorf(api.CodeQuota, "it is full") }
	d.core.mu.Unlock()
	d.refused("BoxValidationError: ", "box_create_session", p, obj{"session_id": "full", "workspace_quota_mb": 5})
}
