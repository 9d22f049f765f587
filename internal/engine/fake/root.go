//go:build linux

package fake

import (
	"archive/tar"
	"context"
	"io"
)

// HoldsFiles implements engine.RootWriter.
func (i *instance) HoldsFiles() bool { return false }

// WriteRoot implements engine.RootWriter: what is written is what the faults say.
func (i *instance) WriteRoot(ctx context.Context, w io.Writer, meanwhile func(context.Context) error) (err error) {
	if err := i.usable("read the root of"); err != nil {
		return err
	}
	if !i.isPaused() {
		if err := i.Pause(ctx); err != nil {
			return err
		}
		defer func() {
			if rerr := i.Resume(context.WithoutCancel(ctx)); err == nil {
				err = rerr
			}
		}()
	}
	faults := i.m.current()
	if err := faults.at(ctx, i, StepRoot); err != nil {
		return err
	}
	if meanwhile != nil {
		if err := meanwhile(ctx); err != nil {
			return err
		}
	}
	if faults.Root != nil {
		_, err := w.Write(faults.Root)
		return err
	}
	t := tar.NewWriter(w)
	if err := t.WriteHeader(&tar.Header{Typeflag: tar.TypeDir, Name: "./", Mode: 0o755}); err != nil {
		return err
	}
	return t.Close()
}
