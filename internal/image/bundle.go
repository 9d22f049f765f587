package image

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/archive"
)

// bundle is a set of files that make up images. It is safe for concurrent use.
type bundle interface {
	has(name string) bool
	// open gives a file's content and its size.
	open(name string) (io.ReadCloser, int64, error)
}

// dirBundle is a directory. Nothing of it is followed out of it.
type dirBundle struct{ root *os.Root }

func (b dirBundle) has(name string) bool {
	info, err := b.root.Lstat(name)
	return err == nil && info.Mode().IsRegular()
}

func (b dirBundle) open(name string) (io.ReadCloser, int64, error) {
	f, err := b.root.OpenFile(path.Clean(name), os.O_RDONLY|noWait, 0)
	if err != nil {
		return nil, 0, missing(name, err)
	}
	info, err := f.Stat()
	if err != nil || !info.Mode().IsRegular() {
		f.Close()
		return nil, 0, missing(name, err)
	}
	return f, info.Size(), nil
}

// tarBundle is an uncompressed tar.
type tarBundle struct {
	r     io.ReaderAt
	files map[string]archive.Located
}

func newTarBundle(r io.ReaderAt, index []archive.Located) tarBundle {
	b := tarBundle{r: r, files: map[string]archive.Located{}}
	for _, e := range index {
		b.files[e.Path] = e
	}
	return b
}

func (b tarBundle) has(name string) bool { return b.files[name].Kind == archive.File }

func (b tarBundle) open(name string) (io.ReadCloser, int64, error) {
	e, ok := b.files[path.Clean(name)]
	// Docker once saved a layer that is there twice as a link to the first.
	if ok && e.Kind == archive.Symlink {
		e, ok = b.files[path.Join(path.Dir(e.Path), e.Target)]
	} else if ok && e.Kind == archive.HardLink {
		e, ok = b.files[e.Target]
	}
	if !ok || e.Kind != archive.File || e.Offset < 0 {
		return nil, 0, missing(name, fs.ErrNotExist)
	}
	return io.NopCloser(io.NewSectionReader(b.r, e.Offset, e.Size)), e.Size, nil
}

func missing(name string, err error) error {
	return api.Invalid("path", "import: it has no file %q, which it says it has", clip(name)).WithCause(err)
}

// readBundle reads a small file whole.
func readBundle(b bundle, name string, most int64) ([]byte, error) {
	r, size, err := b.open(name)
	if err != nil {
		return nil, err
	}
	defer r.Close()
	if size > most {
		return nil, api.Errorf(api.CodeTooLarge, "import: its file %q has more than %d bytes", clip(name), most)
	}
	data, err := io.ReadAll(io.LimitReader(r, most+1))
	if err == nil && int64(len(data)) > most {
		err = errors.New("it grew")
	}
	if err != nil {
		return nil, fmt.Errorf("import: read %s: %w", clip(name), err)
	}
	return data, nil
}

// readBlob reads a file that is named after its digest and verifies that.
func readBlob(b bundle, digest string, most int64) ([]byte, error) {
	data, err := readBundle(b, blobPath(digest), most)
	if err != nil {
		return nil, err
	}
	return data, verify(data, digest)
}

// blobPath is where an OCI layout keeps what has a digest.
func blobPath(digest string) string { return "blobs/sha256/" + hexOf(digest) }
