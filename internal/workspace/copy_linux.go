//go:build !remoteonly

package workspace

import (
	"context"
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// CopyTo copies what is in the directory, as a layer over it shows it when there is
// one, into a new directory at path, the parent of which only this user may enter.
// What it copies is on disk when it returns. On error the caller removes what is at
// path.
func (d *Dir) CopyTo(ctx context.Context, layer *Layer, path string, l CopyLimits) (CopyReport, error) {
	from, err := d.look(layer)
	if err != nil {
		return CopyReport{}, err
	}
	defer from.Close()
	if err := os.Mkdir(path, 0o700); err != nil {
		return CopyReport{}, fmt.Errorf("make directory for a copy: %w", err)
	}
	place, err := openPath(unix.AT_FDCWD, path)
	if err != nil {
		return CopyReport{}, fmt.Errorf("open directory for a copy: %w", err)
	}
	defer place.Close()
	return copyInto(ctx, from, place, l)
}

// look opens the directory for reading, through a layer when there is one.
func (d *Dir) look(layer *Layer) (*os.File, error) {
	if layer != nil {
		return layer.view(d)
	}
	return d.reader()
}

// FillFrom copies the contents of the directory at path, which no other process changes, into this
// one. If this one is not empty, it returns api.CodeConflict. The copy of a file is as the file was.
func (d *Dir) FillFrom(ctx context.Context, path string, l CopyLimits) error {
	place, err := openPath(unix.AT_FDCWD, path)
	if err != nil {
		return fmt.Errorf("open files to copy: %w", err)
	}
	defer place.Close()
	from, err := openDirAt(place, ".")
	if err != nil {
		return err
	}
	defer from.Close()
	if err := d.Empty(ctx); err != nil {
		return err
	}
	if _, err := copyInto(ctx, from, d.file, l); err != nil || d.overfull == nil {
		return err
	}
	return d.overfull()
}

func copyInto(ctx context.Context, from, to *os.File, l CopyLimits) (CopyReport, error) {
	dst, err := openDirAt(to, ".")
	if err != nil {
		return CopyReport{}, err
	}
	defer dst.Close()
	report, err := copyTree(ctx, from, dst, l)
	if err != nil {
		return report, fmt.Errorf("copy files: %w", err)
	}
	if err := unix.Syncfs(int(dst.Fd())); err != nil {
		return report, fmt.Errorf("sync copied files: %w", err)
	}
	return report, nil
}
