package langbot

import (
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"hash"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"

	"github.com/cloche-dev/cloche/api"
)

const (
	// maxUploads bounds what one connection has uploaded and not used.
	maxUploads = 128
	// chunkBytes is the most that one chunk has, and chunkText its length in base64.
	chunkBytes = 16 << 10
	chunkText  = 21_848
)

// chunk is a piece of a file.
type chunk struct {
	Key    string `json:"file_key"`
	Length *int64 `json:"file_length"`
	Base64 string `json:"chunk_base64"`
	Index  *int64 `json:"chunk_index"`
	Amount *int64 `json:"chunk_amount"`
	Size   *int64 `json:"chunk_size"`
}

// uploads are the files of one connection. It is safe for concurrent use.
type uploads struct {
	base string
	most int64

	mu    sync.Mutex
	dir   string // made with the first
	root  *os.Root
	files map[string]*upload
	done  bool
}

type upload struct {
	name     string
	file     *os.File
	sum      hash.Hash
	size     int64
	next     int64
	amount   int64
	declared int64
}

func newUploads(base string, most int64) *uploads {
	return &uploads{base: base, most: most, files: map[string]*upload{}}
}

// fileDir is where uploads lie.
func (s *Server) fileDir() string {
	if s.o.FileDir != "" {
		return s.o.FileDir
	}
	return filepath.Join(s.o.Dir, "uploads")
}

// validKey reports whether k can name an upload.
func validKey(k string) bool {
	if k == "" || len(k) > 255 || strings.Contains(k, "..") {
		return false
	}
	for i, r := range k {
		switch {
		case r >= 'a' && r <= 'z', r >= 'A' && r <= 'Z', r >= '0' && r <= '9':
		case i > 0 && (r == '.' || r == '_' || r == '-'):
		default:
			return false
		}
	}
	return true
}

// take writes one chunk. They come in their order.
func (u *uploads) take(data json.RawMessage) error {
	c, err := decode[chunk](data)
	if err != nil {
		return err
	}
	raw, err := c.check()
	if err != nil {
		return err
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.done {
		return failed(classRuntime, "the connection is ending")
	}
	if *c.Index == 0 {
		if err := u.start(c); err != nil {
			return err
		}
	}
	up := u.files[c.Key]
	switch {
	case up == nil:
		return failed(classValidation, "file_key: no upload of this key has begun")
	case *c.Index != up.next || *c.Amount != up.amount:
		err = failed(classValidation, "chunk_index: chunk %d of %d came, and %d of %d is next", *c.Index, *c.Amount, up.next, up.amount)
	case up.size+int64(len(raw)) > u.most:
		err = failed(classValidation, "the file is over the limit of %d bytes", u.most)
	default:
		err = up.add(raw)
	}
	if err != nil {
		u.remove(c.Key)
	}
	return err
}

func (c *chunk) check() ([]byte, error) {
	switch {
	case !validKey(c.Key):
		return nil, failed(classValidation, "file_key: it is no name of an upload")
	case c.Index == nil || c.Amount == nil || *c.Index < 0 || *c.Index >= *c.Amount:
		return nil, failed(classValidation, "chunk_index: a whole number from 0, below chunk_amount, is needed")
	case len(c.Base64) > chunkText:
		return nil, failed(classValidation, "chunk_base64: it has more than %d characters", chunkText)
	}
	raw, err := base64.StdEncoding.Strict().DecodeString(c.Base64)
	if err != nil || len(raw) > chunkBytes || strings.ContainsAny(c.Base64, "\r\n") {
		return nil, failed(classValidation, "chunk_base64: it is no base64 of at most %d bytes", chunkBytes)
	}
	return raw, nil
}

// start begins a file, or begins it again; for who holds mu.
func (u *uploads) start(c chunk) error {
	u.remove(c.Key)
	if len(u.files) >= maxUploads {
		return failed(classValidation, "there are %d uploads on this connection, which is the most", maxUploads)
	}
	if c.Length != nil && (*c.Length < 0 || *c.Length > u.most) {
		return failed(classValidation, "file_length: at most %d bytes are taken", u.most)
	}
	if u.root == nil {
		if err := u.open(); err != nil {
			return err
		}
	}
	name := api.NewID("up-")
	f, err := u.root.OpenFile(name, os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return fmt.Errorf("begin upload: %w", err)
	}
	up := &upload{name: name, file: f, sum: sha256.New(), amount: *c.Amount, declared: -1}
	if c.Length != nil {
		up.declared = *c.Length
	}
	u.files[c.Key] = up
	return nil
}

func (u *uploads) open() error {
	if err := os.MkdirAll(u.base, 0o700); err != nil {
		return fmt.Errorf("make the directory of uploads: %w", err)
	}
	dir, err := os.MkdirTemp(u.base, "conn-")
	if err != nil {
		return fmt.Errorf("make the directory of uploads: %w", err)
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		return errors.Join(fmt.Errorf("open the directory of uploads: %w", err), os.Remove(dir))
	}
	u.dir, u.root = dir, root
	return nil
}

func (up *upload) add(raw []byte) error {
	if _, err := up.file.Write(raw); err != nil {
		return fmt.Errorf("write upload: %w", err)
	}
	up.sum.Write(raw)
	up.size += int64(len(raw))
	up.next++
	return nil
}

// remove forgets a file; for who holds mu.
func (u *uploads) remove(key string) {
	up := u.files[key]
	if up == nil {
		return
	}
	delete(u.files, key)
	_ = up.file.Close()
	_ = u.root.Remove(up.name)
}

// use takes a file that is whole out, which is removed with it.
func (u *uploads) use(key string) ([]byte, error) {
	u.mu.Lock()
	defer u.mu.Unlock()
	up := u.files[key]
	if up == nil {
		return nil, failed(classValidation, "file_key: there is no upload of this key; one is used once")
	}
	defer u.remove(key)
	prefix, _, _ := strings.Cut(key, "-")
	switch {
	case up.next != up.amount:
		return nil, failed(classValidation, "the upload has %d of %d chunks", up.next, up.amount)
	case up.declared >= 0 && up.declared != up.size:
		return nil, failed(classValidation, "the upload has %d bytes, and %d were announced", up.size, up.declared)
	case len(prefix) == 16 && prefix != hex.EncodeToString(up.sum.Sum(nil))[:16]:
		return nil, failed(classValidation, "the upload is not what its key says")
	}
	data := make([]byte, up.size)
	if _, err := up.file.ReadAt(data, 0); err != nil && !errors.Is(err, io.EOF) {
		return nil, fmt.Errorf("read upload: %w", err)
	}
	return data, nil
}

// close removes all of them.
func (u *uploads) close() {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.done = true
	for key := range u.files {
		u.remove(key)
	}
	if u.root != nil {
		_ = u.root.Close()
		_ = os.Remove(u.dir)
	}
}
