package langbot

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"
)

// Bounds of a directory that has a digest: they are the reference's.
const (
	maxSealedFiles = 2048
	maxSealedBytes = 256 << 20
	maxManifest    = 4 << 20
)

// unsealed are the directories that a digest leaves out, wherever they stand.
func unsealed() []string { return []string{".git", ".venv", "__pycache__", "node_modules"} }

// sealed says what is wrong with a mount that names what is in it: it is not that. Who
// has the directory of the host may change it afterwards.
func (s *settings) sealed(m mountSpec, dir string) error {
	if m.Manifest != "" {
		real := resolved(m.Manifest)
		fi, err := os.Stat(real)
		if err != nil || !fi.Mode().IsRegular() || fi.Size() > maxManifest || !s.allowed(real) {
			return failed(classValidation, "extra_mounts: manifest_path is no file of at most %d bytes below one of the allowed_mount_roots", maxManifest)
		}
	}
	if m.Digest == "" || m.Mode != "ro" {
		return nil
	}
	switch got, err := digestOf(dir); {
	case err != nil:
		return failed(classValidation, "extra_mounts: content_digest: %s cannot have one: %w", clipped(m.HostPath), err)
	case got != m.Digest:
		return failed(classValidation, "extra_mounts: content_digest: %s is %s, and %s was asked for", clipped(m.HostPath), got, m.Digest)
	}
	return nil
}

// digestOf is the digest of a directory as LangBot has it: of a JSON document that
// lists its files, byte for byte as Python writes one.
func digestOf(dir string) (string, error) {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return "", errors.New("it cannot be opened")
	}
	defer root.Close()
	t := tree{root: root}
	if err := t.walk("."); err != nil {
		return "", err
	}
	doc := fmt.Appendf(nil, `{"algorithm":"sha256-tree-v1","files":[%s],"total_bytes":%d}`, bytes.TrimSuffix(t.files.Bytes(), []byte(",")), t.total)
	sum := sha256.Sum256(doc)
	return digestPrefix + hex.EncodeToString(sum[:]), nil
}

// tree lists the files of a directory.
type tree struct {
	root  *os.Root
	files bytes.Buffer
	count int
	total int64
}

// walk lists what is in a directory: its files first, and then its directories.
func (t *tree) walk(dir string) error {
	entries, err := fs.ReadDir(t.root.FS(), dir) // in the order of their names
	if err != nil {
		return errors.New("it cannot be read")
	}
	var dirs []string
	for _, e := range entries {
		name := path.Join(dir, e.Name())
		switch {
		case e.IsDir():
			if !slices.Contains(unsealed(), e.Name()) {
				dirs = append(dirs, name)
			}
		case !e.Type().IsRegular():
			return errors.New("there is something in it that is neither a file nor a directory")
		default:
			if err := t.file(name); err != nil {
				return err
			}
		}
	}
	for _, d := range dirs {
		if err := t.walk(d); err != nil {
			return err
		}
	}
	return nil
}

func (t *tree) file(name string) error {
	if t.count++; t.count > maxSealedFiles {
		return fmt.Errorf("it has more than %d files", maxSealedFiles)
	}
	if !utf8.ValidString(name) || strings.ContainsRune(name, '\\') {
		return errors.New("a name in it is no text, or has a backslash")
	}
	f, err := t.root.OpenFile(name, os.O_RDONLY|noLink, 0)
	if err != nil {
		return errors.New("a file in it cannot be opened")
	}
	defer f.Close()
	fi, err := f.Stat()
	if err != nil || !fi.Mode().IsRegular() {
		return errors.New("a file in it was changed")
	}
	sum := sha256.New()
	n, err := io.Copy(sum, io.LimitReader(f, maxSealedBytes-t.total+1))
	if t.total += n; t.total > maxSealedBytes {
		return fmt.Errorf("it has more than %d bytes", maxSealedBytes)
	}
	if err != nil || n != fi.Size() {
		return errors.New("a file in it was changed")
	}
	fmt.Fprintf(&t.files, `{"executable":%t,"path":%s,"sha256":"%x","size":%d},`, fi.Mode()&0o111 != 0, quoted(name), sum.Sum(nil), n)
	return nil
}

// quoted is a string of JSON as Python writes it with ensure_ascii=False.
func quoted(s string) string {
	var b strings.Builder
	b.WriteByte('"')
	for _, r := range s {
		switch {
		case r == '"' || r == '\\':
			b.WriteString(`\` + string(r))
		case r < ' ' && strings.ContainsRune("\b\f\n\r\t", r):
			b.WriteString(strings.Trim(strconv.Quote(string(r)), `"`))
		case r < ' ':
			fmt.Fprintf(&b, `\u%04x`, r)
		default:
			b.WriteRune(r)
		}
	}
	return b.String() + `"`
}
