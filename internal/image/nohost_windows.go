package image

import (
	"context"
	"io"
	"os"

	"github.com/cloche-dev/cloche/api"
)

// Sandboxes run Linux, and nothing of Windows can be a part of their root.

func noHost(what string) error {
	return api.Errorf(api.CodeUnsupported, "%s is made of programs and files of Linux, and this machine has Windows", what).
		WithHint("take an image: cloche image pull, or cloche image import with a tar")
}

// hostView would be the machine as the host image shows it.
type hostView struct{}

func thisHost(string) hostView { return hostView{} }

func (hostView) build(context.Context, []string) (*tree, record, error) {
	return nil, record{}, noHost("the image host")
}

func (hostView) checkMountPoints(Need) ([]string, error) { return nil, noHost("the image host") }

// BuildBase is refused.
func (s *Store) BuildBase(context.Context, string, []string, ImportOptions) (api.Image, error) {
	return api.Image{}, noHost("such an image")
}

// packDir is refused: a directory here does not say whose its files are and what they may.
func packDir(context.Context, *os.Root) io.ReadCloser {
	return failed{api.Invalid("path", "import: the files of a directory of Windows have neither the owners nor the modes of a root filesystem").
		WithHint("make a tar of it where it was made, and import that")}
}

// failed is a stream that fails at once.
type failed struct{ err error }

func (f failed) Read([]byte) (int, error) { return 0, f.err }
func (failed) Close() error               { return nil }
