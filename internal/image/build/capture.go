package build

import (
	"archive/tar"
	"context"
	"io"
	"time"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/archive/erofstar"
	"github.com/cloche-dev/cloche/internal/image"
	"github.com/cloche-dev/cloche/internal/image/capture"
)

// capture keeps what the last step changed as a layer.
func (s *stage) capture(ctx context.Context) (l image.Layer, err error) {
	l, s.known, err = keepChanges(ctx, s.work.b.Images, s.sandbox, s.known, capture.Entry.Same)
	for _, note := range l.Notes {
		s.warn("%s", note)
	}
	return l, err
}

// keepChanges keeps what differs from what was known of a sandbox as a layer, and returns what is known now.
func keepChanges(ctx context.Context, images *image.Store, sandbox Sandbox, before capture.Files, same func(now, before capture.Entry) bool) (image.Layer, capture.Files, error) {
	now, err := capture.ListAll(ctx, sandbox)
	if err != nil {
		return image.Layer{}, nil, err
	}
	changed, removed := before.Diff(now, same)
	if len(changed)+len(removed) == 0 {
		return image.Layer{}, now.Files, nil
	}
	p := &capture.Packer{}
	l, err := images.PutLayer(ctx, func(w io.Writer) error { return p.Pack(ctx, sandbox, w, changed, removed) })
	l.Notes = p.Notes()
	return l, now.Files, err
}

// Commit makes an image called name of a sandbox that was created from the image base, not before created.
// Programs that run meanwhile change files while they are read.
func Commit(ctx context.Context, images *image.Store, sandbox Sandbox, name, base string, created time.Time, config api.ImageConfig) (api.Image, error) {
	files, err := images.OpenFiles(ctx, base)
	if err != nil {
		return api.Image{}, err
	}
	defer files.Close()
	before, err := capture.FilesOf(files)
	if err != nil {
		return api.Image{}, err
	}
	l, _, err := keepChanges(ctx, images, sandbox, before, func(now, in capture.Entry) bool { return now.Untouched(in, created.UnixNano()) })
	if err != nil {
		return api.Image{}, err
	}
	return images.Stack(ctx, name, image.StackOptions{Base: base, Layers: []image.Layer{l}, Config: config})
}

// restoreTmp gives the sandbox the files that its image has in /tmp, which a sandbox does not show.
func (s *stage) restoreTmp(ctx context.Context, files *image.Tree) error {
	if st, ok := files.Lstat(capture.Tmp); !ok || st.Type != api.TypeDir || len(files.Names(capture.Tmp)) == 0 {
		return nil
	}
	return s.send(ctx, "/"+capture.Tmp, func(w *tar.Writer) error {
		return files.Pack(ctx, &erofstar.Packer{Tar: w}, capture.Tmp, ".", nil)
	})
}
