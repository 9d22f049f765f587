package docker

import (
	"archive/tar"
	"context"
	"fmt"
	"io"
	"os"

	erofs "github.com/erofs/go-erofs"

	"github.com/cloche-dev/cloche/internal/archive/erofstar"
)

// writeTree writes the whole of an EROFS image as a tar.
func writeTree(ctx context.Context, w io.Writer, image string) error {
	t := tar.NewWriter(w)
	if err := addTree(ctx, t, image); err != nil {
		return err
	}
	return t.Close()
}

// addTree adds what is in an EROFS image to a tar.
func addTree(ctx context.Context, t *tar.Writer, image string) error {
	f, err := os.Open(image)
	if err != nil {
		return fmt.Errorf("open image: %w", err)
	}
	defer f.Close()
	root, err := erofs.Open(f)
	if err != nil {
		return fmt.Errorf("read image: %w", err)
	}
	p := &erofstar.Packer{Tar: t}
	if err := p.Add(ctx, root, ".", ".", nil); err != nil {
		return fmt.Errorf("pack image: %w", err)
	}
	return nil
}
