package localdir

import (
	"archive/zip"
	"errors"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"

	"github.com/cloche-dev/cloche/api"
)

// maxZipFiles is the most files of a skill that the daemon accepts. The limit here keeps
// Zip from reading a large directory that was named by mistake.
const maxZipFiles = 2000

// Zip packs a skill's directory, with the directory's own name as the first part of each
// path, into a temporary file that Close removes. It refuses everything that is neither a
// file nor a directory.
func Zip(dir string) (io.ReadCloser, error) {
	out, err := os.CreateTemp("", "cloche-skill-*.zip")
	if err != nil {
		return nil, Error("write", os.TempDir(), err)
	}
	packed := &tempFile{out}
	if err = packZip(out, dir); err == nil {
		_, err = out.Seek(0, io.SeekStart)
	}
	if err != nil {
		_ = packed.Close()
		if _, told := errors.AsType[*api.Error](err); told {
			return nil, err
		}
		return nil, Error("read", dir, err)
	}
	return packed, nil
}

// tempFile is removed when it is closed.
type tempFile struct{ *os.File }

// Close implements io.Closer.
func (f *tempFile) Close() error {
	err := f.File.Close()
	if rerr := os.Remove(f.Name()); err == nil {
		err = rerr
	}
	return err
}

func packZip(w io.Writer, dir string) error {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return err
	}
	defer root.Close()
	z, n, top := zip.NewWriter(w), 0, filepath.Base(dir)
	err = fs.WalkDir(root.FS(), ".", func(p string, d fs.DirEntry, err error) error {
		if err != nil || p == "." {
			return err
		}
		if n++; n > maxZipFiles {
			return api.Errorf(api.CodeTooLarge, "%s has more than %d files", filepath.ToSlash(dir), maxZipFiles)
		}
		if !d.IsDir() && !d.Type().IsRegular() {
			return api.Invalid("skill", "%s is neither a file nor a directory", filepath.Join(dir, p)).WithHint("a skill has no symlinks: put the file itself in its place")
		}
		return packOne(z, root, p, path.Join(top, p), d)
	})
	if cerr := z.Close(); err == nil {
		err = cerr
	}
	return err
}

func packOne(z *zip.Writer, root *os.Root, p, name string, d fs.DirEntry) error {
	if d.IsDir() {
		_, err := z.Create(name + "/")
		return err
	}
	f, err := root.Open(p)
	if err != nil {
		return err
	}
	defer f.Close()
	fi, err := f.Stat()
	if err != nil {
		return err
	}
	h := &zip.FileHeader{Name: name, Method: zip.Deflate, Modified: fi.ModTime()}
	h.SetMode(fi.Mode().Perm())
	out, err := z.CreateHeader(h)
	if err == nil {
		_, err = io.Copy(out, f)
	}
	return err
}
