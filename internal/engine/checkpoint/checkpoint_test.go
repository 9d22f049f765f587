//go:build linux

package checkpoint

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"filippo.io/age"

	"github.com/cloche-dev/cloche/api"
)

// keyFile writes a file of new identities, and returns its path.
func keyFile(t *testing.T, identities ...*age.X25519Identity) string {
	t.Helper()
	text := "# created by a test\n"
	for _, id := range identities {
		text += id.String() + "\n"
	}
	path := filepath.Join(t.TempDir(), "key")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func identity(t *testing.T) *age.X25519Identity {
	t.Helper()
	id, err := age.GenerateX25519Identity()
	if err != nil {
		t.Fatal(err)
	}
	return id
}

func key(t *testing.T, identities ...*age.X25519Identity) *Key {
	t.Helper()
	k, err := ReadKey(keyFile(t, identities...))
	if err != nil {
		t.Fatal(err)
	}
	return k
}

// write stores content as an engine does, and returns its checksum.
func write(t *testing.T, dir, name string, k *Key, content []byte) (sum string) {
	t.Helper()
	at, err := os.OpenRoot(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer at.Close()
	f, err := Create(at, name, k)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if _, err := f.WriteAt(content, 0); err != nil {
		t.Fatal(err)
	}
	if err := f.Store(t.Context()); err != nil {
		t.Fatal(err)
	}
	if f.Stored() <= 0 {
		t.Errorf("%d bytes of the disk", f.Stored())
	}
	size, sum, err := Sum(t.Context(), f.File)
	if err != nil || size != int64(len(content)) {
		t.Fatalf("%d bytes, %v", size, err)
	}
	return sum
}

func read(t *testing.T, dir, name string, k *Key, size int64) ([]byte, error) {
	t.Helper()
	f, err := Open(t.Context(), dir, name, k, size)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return io.ReadAll(f)
}

func names(t *testing.T, dir string) string {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	var out []string
	for _, e := range entries {
		out = append(out, e.Name())
	}
	return strings.Join(out, " ")
}

// TestForms: a file has the same content in each form, another key does not open it, and nothing of an encrypted one is on
// the disk.
func TestForms(t *testing.T) {
	old, own := identity(t), identity(t)
	content := bytes.Repeat([]byte("canary-of-the-memory "), 20_000)
	dir := t.TempDir()
	sum := write(t, dir, "pages", nil, content)
	if got, err := read(t, dir, "pages", nil, int64(len(content))); err != nil || !bytes.Equal(got, content) || names(t, dir) != "pages" {
		t.Errorf("as it is: %d bytes, %v, %s", len(got), err, names(t, dir))
	}
	saved, err := Compress(t.Context(), dir, func(string) bool { return false })
	if err != nil || saved < 300_000 || names(t, dir) != "pages.zst" {
		t.Fatalf("%d bytes less, %v, %s", saved, err, names(t, dir))
	}
	if got, err := read(t, dir, "pages", nil, int64(len(content))); err != nil || !bytes.Equal(got, content) {
		t.Errorf("compressed: %d bytes, %v", len(got), err)
	}
	if again := write(t, dir, "pages", key(t, old), content); again != sum || names(t, dir) != "pages.zst.age" {
		t.Errorf("encrypted: sums %s and %s, files %s", sum, again, names(t, dir))
	}
	if data, err := os.ReadFile(filepath.Join(dir, "pages.zst.age")); err != nil || bytes.Contains(data, []byte("canary")) {
		t.Errorf("the file has what it should hide: %v", err)
	}
	for name, c := range map[string]struct {
		key  *Key
		size int
		want error
	}{
		"its key": {key(t, old), len(content), nil}, "a new key before it": {key(t, own, old), len(content), nil},
		"another key": {key(t, own), len(content), ErrKey}, "no key": {nil, len(content), ErrKey},
		"too long": {key(t, old), len(content) - 1, ErrDamaged}, "too short": {key(t, old), len(content) + 1, ErrDamaged},
	} {
		got, err := read(t, dir, "pages", c.key, int64(c.size))
		if !errors.Is(err, c.want) || c.want == nil && !bytes.Equal(got, content) {
			t.Errorf("%s: %d bytes, %v", name, len(got), err)
		}
	}
	if _, err := read(t, dir, "kernel", nil, 1); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a file that does not exist: %v", err)
	}
	if left, err := Compress(t.Context(), dir, func(string) bool { return false }); left != 0 || err != nil || names(t, dir) != "pages.zst.age" {
		t.Errorf("compress an encrypted one: %d, %v, %s", left, err, names(t, dir))
	}
}

// TestDamage: no changed or truncated file is opened.
func TestDamage(t *testing.T) {
	k := key(t, identity(t))
	content := make([]byte, 100_000)
	_, _ = rand.Read(content)
	for _, form := range []string{suffixCompressed, suffixEncrypted} {
		dir := t.TempDir()
		if form == suffixEncrypted {
			write(t, dir, "pages", k, content)
		} else {
			var packed bytes.Buffer
			if err := encode(t.Context(), &packed, bytes.NewReader(content), nil); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(filepath.Join(dir, "pages.zst"), packed.Bytes(), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		path := filepath.Join(dir, "pages"+form)
		whole, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		try := func(what string, data []byte) {
			t.Helper()
			if err := os.WriteFile(path, data, 0o600); err != nil {
				t.Fatal(err)
			}
			got, err := read(t, dir, "pages", k, int64(len(content)))
			if err == nil && (form == suffixEncrypted || !bytes.Equal(got, content)) {
				t.Errorf("%s %s: opened", form, what)
			}
			if err != nil && !errors.Is(err, ErrDamaged) && !errors.Is(err, ErrKey) {
				t.Errorf("%s %s: %v", form, what, err)
			}
		}
		for n := 0; n < len(whole); n += 1 + len(whole)/200 {
			changed := bytes.Clone(whole)
			changed[n] ^= 0x10
			try("with a changed byte", changed)
			try("cut", whole[:n])
		}
		try("with more at its end", append(bytes.Clone(whole), 0))
	}
}

// TestCompressKeeps: what would not be smaller, what the caller keeps, and what an interrupted compression had not reached stays
// as it is, and what a daemon left that died is removed.
func TestCompressKeeps(t *testing.T) {
	dir := t.TempDir()
	zeros, random := make([]byte, 1<<20), make([]byte, 1<<20)
	_, _ = rand.Read(random)
	for name, content := range map[string][]byte{"pages": bytes.Repeat([]byte("x"), 1<<20), "kernel": random, "root.erofs": bytes.Repeat([]byte("y"), 1<<20), "pages.meta.zst.partial": zeros} {
		if err := os.WriteFile(filepath.Join(dir, name), content, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	keep := func(name string) bool { return name == "root.erofs" }
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := Compress(ctx, dir, keep); !errors.Is(err, context.Canceled) {
		t.Errorf("interrupted: %v", err)
	}
	if got, err := read(t, dir, "pages", nil, 1<<20); err != nil || len(got) != 1<<20 {
		t.Errorf("after an interrupted compression: %d bytes, %v", len(got), err)
	}
	if _, err := Compress(t.Context(), dir, keep); err != nil || names(t, dir) != "kernel pages.zst root.erofs" {
		t.Errorf("%v, %s", err, names(t, dir))
	}
}

// TestReadKey: only a file of identities that no other user can read is a key, and no error has a part of it.
func TestReadKey(t *testing.T) {
	good, id := keyFile(t, identity(t)), identity(t)
	if _, err := ReadKey(good); err != nil {
		t.Error(err)
	}
	if err := os.Chmod(good, 0o640); err != nil {
		t.Fatal(err)
	}
	if _, err := ReadKey(good); api.CodeOf(err) != api.CodeInvalid || !strings.Contains(err.Error(), "0640") {
		t.Errorf("a key that the group can read: %v", err)
	}
	for name, text := range map[string]string{"empty": "", "a recipient": id.Recipient().String(), "a cut identity": id.String()[:40], "binary": "\x00\xff"} {
		path := filepath.Join(t.TempDir(), "key")
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		_, err := ReadKey(path)
		if api.CodeOf(err) != api.CodeInvalid || text != "" && strings.Contains(err.Error(), text) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := ReadKey(filepath.Join(t.TempDir(), "missing")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a missing one: %v", err)
	}
}

// FuzzDecode: foreign bytes are refused, and need no more memory than the size that is known.
func FuzzDecode(f *testing.F) {
	var packed bytes.Buffer
	if err := encode(f.Context(), &packed, strings.NewReader("content"), nil); err != nil {
		f.Fatal(err)
	}
	f.Add(packed.Bytes(), int64(7))
	f.Add([]byte("age-encryption.org/v1\n"), int64(1))
	id, err := age.GenerateX25519Identity()
	if err != nil {
		f.Fatal(err)
	}
	k := &Key{recipient: id.Recipient(), identities: []age.Identity{id}}
	f.Fuzz(func(t *testing.T, data []byte, size int64) {
		size = min(max(size, 0), 1<<20)
		for _, key := range []*Key{nil, k} {
			var out bytes.Buffer
			err := decode(t.Context(), &out, bytes.NewReader(data), key, size)
			if err == nil && int64(out.Len()) != size || int64(out.Len()) > size+1 || err != nil && !errors.Is(err, ErrDamaged) && !errors.Is(err, ErrKey) {
				t.Errorf("%d bytes of %d: %v", out.Len(), size, err)
			}
		}
	})
}
