package langbot

import (
	"os"
	"path"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
)

// mountSpec is one more directory of the host.
type mountSpec struct {
	HostPath  string `json:"host_path"`
	MountPath string `json:"mount_path"`
	Mode      string `json:"mode"`
	// Digest, where it is given, is what the directory has to have in it, and Manifest a
	// file of the host that lists it.
	Digest   string `json:"content_digest,omitempty"`
	Manifest string `json:"manifest_path,omitempty"`
}

const (
	// artifactRoot is where directories are mounted whose names are their digests.
	artifactRoot = "/opt/langbot-artifacts"
	// maxGrantMounts bounds the mounts of a session where grants are needed.
	maxGrantMounts = 256
	digestPrefix   = "sha256:"
)

// check fills the defaults in and says what is wrong with the i-th mount.
func (m *mountSpec) check(i int) error {
	wrong := func(format string, args ...any) error {
		f := failed(classValidation, format, args...)
		f.text = "extra_mounts[" + strconv.Itoa(i) + "]: " + f.text
		return f
	}
	if m.Mode == "" {
		m.Mode = "rw"
	}
	m.Digest, m.Manifest = strings.TrimSpace(m.Digest), strings.TrimSpace(m.Manifest)
	hex, named := strings.CutPrefix(m.Digest, digestPrefix)
	switch {
	case !isAbsolute(m.HostPath) || !strings.HasPrefix(m.MountPath, "/") || !isMode(m.Mode):
		return wrong("host_path and mount_path are absolute, and mode is none, ro or rw")
	case m.Digest != "" && (!named || len(hex) != 64 || strings.Trim(hex, "0123456789abcdef") != ""):
		return wrong("content_digest: it is sha256: and 64 lower-case hexadecimal digits")
	case m.Manifest != "" && !isAbsolute(m.Manifest):
		return wrong("manifest_path: %.80q is no absolute path", m.Manifest)
	case below(artifactRoot, m.MountPath) && !m.addressed():
		return wrong("mount_path: below %s is what is mounted to read, with a manifest, at its digest", artifactRoot)
	}
	return nil
}

// addressed is true for a mount whose place says what is in it.
func (m *mountSpec) addressed() bool {
	hex := strings.TrimPrefix(m.Digest, digestPrefix)
	return m.Mode == "ro" && hex != "" && m.Manifest != "" && m.MountPath == artifactRoot+"/"+hex
}

// mounts are the ones that count, in one order.
func (s *boxSpec) mounts() []mountSpec {
	out := slices.DeleteFunc(slices.Clone(s.ExtraMounts), func(m mountSpec) bool { return m.Mode == "none" })
	key := func(m mountSpec) string {
		return strings.Join([]string{m.MountPath, m.HostPath, m.Mode, m.Digest, m.Manifest}, "\x00")
	}
	slices.SortFunc(out, func(a, b mountSpec) int { return strings.Compare(key(a), key(b)) })
	return slices.Compact(out)
}

// granted are the mounts of a session where grants are needed: few, to read, each
// at a place of its own below the workspace, and none of another workspace's.
func (s *settings) granted(p placement, mounts []mountSpec) ([]mountSpec, error) {
	if len(mounts) > maxGrantMounts {
		return nil, failed(classAdmission, "extra_mounts: there are %d, and %d are the most where grants are needed", len(mounts), maxGrantMounts)
	}
	out, taken := make([]mountSpec, 0, len(mounts)), map[string]bool{}
	for _, m := range mounts {
		m.HostPath = resolved(m.HostPath)
		fi, err := os.Stat(m.HostPath)
		switch {
		case m.Mode != "ro":
			return nil, failed(classAdmission, "extra_mounts: they are to be read only where grants are needed")
		case err != nil || !fi.IsDir():
			return nil, failed(classAdmission, "extra_mounts: %s is no directory", clipped(m.HostPath))
		case !s.allowed(m.HostPath):
			return nil, failed(classAdmission, "extra_mounts: %s is not below one of the allowed_mount_roots", clipped(m.HostPath))
		case s.ofAnother(p, m.HostPath):
			return nil, failed(classAdmission, "extra_mounts: %s is of another Workspace, or of all", clipped(m.HostPath))
		case m.Manifest != "" && m.Digest == "":
			return nil, failed(classAdmission, "extra_mounts: manifest_path needs content_digest")
		case !m.addressed() && (path.Clean(m.MountPath) != m.MountPath || m.MountPath == usualMountPath || !below(usualMountPath, m.MountPath)):
			return nil, failed(classAdmission, "extra_mounts: %s is not below %s", clipped(m.MountPath), usualMountPath)
		case taken[m.MountPath]:
			return nil, failed(classAdmission, "extra_mounts: two are at %s", clipped(m.MountPath))
		}
		taken[m.MountPath] = true
		out = append(out, m)
	}
	return out, nil
}

// ofAnother reports whether a directory has in it, or is part of, what other
// workspaces have: their directories and their skills.
func (s *settings) ofAnother(p placement, dir string) bool {
	return slices.ContainsFunc([]string{s.workspace, s.skills}, func(root string) bool {
		if root == "" {
			return false
		}
		tenants := filepath.Join(root, "tenants")
		own := filepath.Join(tenants, p.durable())
		return belowHost(runtime.GOOS, dir, tenants) || belowHost(runtime.GOOS, tenants, dir) && !belowHost(runtime.GOOS, own, dir)
	})
}
