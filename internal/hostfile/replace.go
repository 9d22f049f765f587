package hostfile

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strings"
)

// tempSuffix ends the name of a file that Replace has not renamed yet.
const tempSuffix = ".new"

// IsTemp reports whether a file name is one that Replace gives to content that is not in
// its place yet. Content that is found under it after a crash was never acknowledged.
func IsTemp(name string) bool { return strings.HasSuffix(name, tempSuffix) }

// Replace gives a file of Cloche's own new content. A reader, also after a power
// cut, finds the old content or the new, whole. When Replace returns nil, the new content
// is on the disk. On an error the old content is still there, unless only the last step
// failed, which makes the new content durable. The file is 0600. Callers write one name at
// a time.
//
// Every record of the project is written by this or by ReplaceWith; what is written to an
// open file over time is named by Settle.
func Replace(root *os.Root, name string, data []byte) error {
	return ReplaceWith(root, name, func(w io.Writer) error {
		_, err := w.Write(data)
		return err
	})
}

// ReplaceWith is Replace for content that write produces.
func ReplaceWith(root *os.Root, name string, write func(io.Writer) error) error {
	temp := name + tempSuffix
	f, err := root.OpenFile(temp, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	if err = write(f); err == nil {
		err = f.Sync()
	}
	if err = errors.Join(err, f.Close()); err == nil {
		err = root.Rename(temp, name)
	}
	if err != nil {
		// A full disk gets its space back.
		_ = root.Remove(temp)
		return err
	}
	return syncDir(root, path.Dir(filepath.ToSlash(name)))
}

// ReplaceIn is Replace for a file of a directory that is not open.
func ReplaceIn(dir, name string, data []byte) error {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return err
	}
	defer root.Close()
	return Replace(root, name, data)
}

// CreateIn makes a file of Cloche's own, with content, that is on the disk when CreateIn
// returns nil. It costs one write of the filesystem's journal where Replace costs two, and
// what a crash leaves may be a part of the content: it is for a file that its reader can
// tell is not finished.
func CreateIn(dir, name string, data []byte) error {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return err
	}
	defer root.Close()
	f, err := root.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	if _, err = f.Write(data); err == nil {
		err = f.Sync()
	}
	if err := errors.Join(err, f.Close()); err != nil {
		return err
	}
	return SyncDir(root)
}

// Settle gives an open file, with what was written to it, a name in the same filesystem,
// which another file may have had. When it returns nil, content and name survive a power
// cut. The file stays open.
func Settle(f *os.File, to string) error {
	if err := f.Sync(); err != nil {
		return err
	}
	if err := Rename(f.Name(), to); err != nil {
		return err
	}
	return SyncDirAt(filepath.Dir(to))
}

// SettleIn is Settle for a file that has a name in an open directory.
func SettleIn(root *os.Root, f *os.File, from, to string) error {
	if err := f.Sync(); err != nil {
		return err
	}
	if err := root.Rename(from, to); err != nil {
		return err
	}
	return syncDir(root, path.Dir(filepath.ToSlash(to)))
}

// SyncDirAt is SyncDir of a directory that is not open.
func SyncDirAt(dir string) error {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return err
	}
	defer root.Close()
	return SyncDir(root)
}

// SyncDir makes the names in a directory last.
func SyncDir(root *os.Root) error { return syncDir(root, ".") }

func syncDir(root *os.Root, name string) error {
	if err := syncDirIn(root, name); err != nil {
		return fmt.Errorf("sync directory: %w", err)
	}
	return nil
}

// SyncTree waits until a file, or a directory with everything below it, is on the disk. It follows no links.
func SyncTree(path string) error {
	return filepath.WalkDir(path, func(p string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir():
			return SyncDirAt(p)
		case !d.Type().IsRegular():
			return nil
		}
		f, err := os.Open(p)
		if err != nil {
			return err
		}
		defer f.Close()
		return f.Sync()
	})
}
