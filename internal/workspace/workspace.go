// Package workspace opens the directories that sandboxes work in, so that what
// is mounted is what was looked at: private ones, named ones that outlive their
// sandboxes, and directories of the host.
package workspace

import (
	"bytes"
	"errors"
	"path"
	"strings"
	"unicode/utf8"

	"github.com/cloche-dev/cloche/api"
)

// maxPath is the longest path of a directory, in bytes.
const maxPath = 4095

// CheckPath refuses a path that cannot be the path of a directory on this machine,
// and says what would be valid. It looks at the text only.
func CheckPath(p string) error {
	switch {
	case p == "":
		return api.Errorf(api.CodeInvalid, "the path of the directory is empty").
			WithHint("give an absolute path, such as /srv/data")
	case len(p) > maxPath:
		return api.Errorf(api.CodeInvalid, "the path of the directory has %d bytes, which is more than %d", len(p), maxPath)
	case strings.ContainsRune(p, 0):
		return api.Errorf(api.CodeInvalid, "the path %q of the directory contains a NUL byte", clip(p))
	case looksLikeWindows(p):
		return api.Errorf(api.CodeInvalid, "the path %q is one of Windows, and sandboxes run on Linux", clip(p)).
			WithHint("give the path as the machine that Cloche runs on knows it, such as /srv/data")
	case !path.IsAbs(p):
		return api.Errorf(api.CodeInvalid, "the path %q of the directory is relative", clip(p)).
			WithHint("give an absolute path, such as /srv/data")
	case path.Clean(p) != p:
		return api.Errorf(api.CodeInvalid, "the path %q of the directory is not in its shortest form", clip(p)).
			WithHint("say %q", clip(path.Clean(p)))
	}
	return nil
}

// Elsewhere is the error for what cannot be done with a workspace because an engine
// keeps it.
func Elsewhere(name, engine string) error {
	return api.Errorf(api.CodeUnsupported, "workspace %s is a volume of engine %s: its files are not on this host", clip(name), engine).
		WithHint("use the files inside the sandbox, or copy them out with: cloche cp")
}

// looksLikeWindows is true for a drive letter or a UNC name.
func looksLikeWindows(p string) bool {
	drive := len(p) >= 2 && p[1] == ':' && (p[0]|0x20) >= 'a' && (p[0]|0x20) <= 'z'
	return drive || strings.HasPrefix(p, `\\`)
}

// clip shortens what a request said before it is said back.
func clip(s string) string {
	const limit = 256
	if len(s) <= limit {
		return s
	}
	return s[:limit] + "…"
}

// DefaultInodes is how many files and directories a workspace of so many bytes
// takes by default.
func DefaultInodes(sizeBytes int64) int64 {
	return min(max(sizeBytes/(16<<10), 1024), sizeBytes/(4<<10))
}

// Bounds are the size of a workspace; zero is unlimited.
type Bounds struct {
	SizeBytes, Inodes int64
}

// Any is true when something is bounded.
func (b Bounds) Any() bool { return b.SizeBytes > 0 || b.Inodes > 0 }

// Unseen is the excess of what was made so that it cannot be counted, while more than the
// limit went into its filesystem.
func Unseen(limit Bounds) *api.Error {
	e := api.Errorf(api.CodeQuota, "the workspace cannot be counted, and its filesystem has lost more than the %d bytes or %d inodes that it may hold", limit.SizeBytes, limit.Inodes).
		WithHint("keep fewer files in it, and no unreadable directories; or use a workspace whose quota is hard")
	e.Quota = &api.QuotaExcess{Unit: api.QuotaBytes, Used: limit.SizeBytes, Limit: limit.SizeBytes}
	return e
}

// CopyLimits bound a copy; 0 is unlimited.
type CopyLimits struct {
	// Bytes is what the files occupy.
	Bytes   int64
	Entries int64
}

// CopyReport is what a copy came to.
type CopyReport struct {
	Bytes   int64
	Entries int64
	// Left names what was left out, and why, up to a bound.
	Left []api.TarSkip
}

// RawPath is the path of a change as its bytes are.
func RawPath(c api.Change) string {
	if c.PathBytes != nil {
		return string(c.PathBytes)
	}
	return c.Path
}

// NewChange is a change of the path that has these bytes.
func NewChange(path string, kind api.ChangeKind) api.Change {
	c := api.Change{Path: path, Kind: kind}
	if !utf8.ValidString(path) {
		c.Path, c.PathBytes = string(bytes.ToValidUTF8([]byte(path), []byte("\uFFFD"))), []byte(path)
	}
	return c
}

// Attached is a directory of this machine that a sandbox has, as its record keeps it.
type Attached struct {
	// Path is where the directory was, and Dev and Ino which one it was.
	Path     string
	Dev, Ino uint64
	// Target is the path inside.
	Target   string
	ReadOnly bool `json:",omitempty"`
}

// AttachedAs returns an open directory as a sandbox has it.
func (d *Dir) AttachedAs(target string, readOnly bool) Attached {
	dev, ino := d.ID()
	return Attached{Path: d.Path(), Dev: dev, Ino: ino, Target: target, ReadOnly: readOnly}
}

// Open opens the directory again. One that was replaced is api.CodeState.
func (a Attached) Open() (*Dir, error) {
	dir, err := openAgain(a.Path)
	if err != nil {
		return nil, err
	}
	if dev, ino := dir.ID(); dev != a.Dev || ino != a.Ino {
		return nil, errors.Join(api.Errorf(api.CodeState, "the directory %s was replaced", a.Path), dir.Close())
	}
	return dir, nil
}
