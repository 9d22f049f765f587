// Package savedroot keeps what a sandbox changed in its root in the sandbox's directory, from a stop to the next start.
package savedroot

import (
	"context"
	"errors"
	"io"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"time"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/agent"
	"github.com/cloche-dev/cloche/internal/hostfile"
	"github.com/cloche-dev/cloche/internal/image"
	"github.com/cloche-dev/cloche/internal/image/capture"
	"github.com/cloche-dev/cloche/internal/sandbox/directory"
	"github.com/cloche-dev/cloche/internal/workspace"
)

// Timeout bounds one save. A kill of the sandbox ends it at once.
const Timeout = 10 * time.Minute

// ErrNoImage means that the files of an image are at a service, so that a root cannot be compared with them.
var ErrNoImage = errors.New("its engine does not show the files of its image")

// Save saves what a sandbox has changed since a time in its root, which was made of the image at the path below. The
// processes of the sandbox have ended. An error leaves an earlier save as it was. skipped are the files that are
// not in it. rootBytes is the limit of the root, or 0. may returns an error if a save may not have so many bytes.
func Save(ctx context.Context, sandbox *agent.Client, below string, since time.Time, dir string, rootBytes int64, may func(bytes int64) error) (size int64, skipped []api.Loss, err error) {
	ctx, cancel := context.WithTimeout(ctx, Timeout)
	defer cancel()
	tree, err := image.OpenTree(below)
	if err != nil {
		return 0, nil, err
	}
	defer tree.Close()
	root, err := os.OpenRoot(dir)
	if err != nil {
		return 0, nil, err
	}
	defer root.Close()
	out := &bounded{dir: dir, left: math.MaxInt64}
	if rootBytes > 0 {
		out.left = 2*rootBytes + spareBytes // a tar has a header for each file
	}
	err = hostfile.ReplaceWith(root, directory.Root, func(w io.Writer) error {
		out.w = w
		if skipped, err = capture.SaveRoot(ctx, sandbox, tree, since, out); err != nil {
			return err
		}
		return may(out.n)
	})
	return out.n, skipped, err
}

const (
	// spareBytes is what a save can have beyond what its root may hold.
	spareBytes = 64 << 20
	// lookEvery is how many bytes are written between two looks at the disk, and reserve the part of it, one of so
	// many, that a save leaves free.
	lookEvery = 16 << 20
	reserve   = 20
)

// bounded bounds a save: what is written comes from the sandbox.
type bounded struct {
	w       io.Writer
	dir     string
	n, left int64
	looked  int64
}

// Write implements io.Writer.
func (b *bounded) Write(p []byte) (int, error) {
	if int64(len(p)) > b.left {
		return 0, api.Errorf(api.CodeTooLarge, "it has more bytes than limits.disk_bytes allows")
	}
	if b.n-b.looked >= lookEvery {
		b.looked = b.n
		if space, err := workspace.SpaceAt(b.dir); err == nil && space.FreeBytes < space.TotalBytes/reserve {
			return 0, api.Errorf(api.CodeNoCapacity, "the disk is almost full")
		}
	}
	n, err := b.w.Write(p)
	b.n += int64(n)
	b.left -= int64(n)
	return n, err
}

// Failed says why a save failed, without paths of the host.
func Failed(err error) string {
	e, ok := errors.AsType[*api.Error](err)
	switch {
	case errors.Is(err, ErrNoImage):
		return ErrNoImage.Error()
	case hostfile.IsFull(err):
		return "the disk was full when it was to be saved"
	case errors.Is(err, context.DeadlineExceeded), errors.Is(err, context.Canceled), api.CodeOf(err) == api.CodeTimeout, api.CodeOf(err) == api.CodeCanceled:
		return "there was no time to save it"
	case ok:
		return "it could not be saved: " + e.Message
	}
	return "it could not be saved; the daemon's log says why"
}

// Restore gives a sandbox in which nothing runs the root that was saved last, if there is one.
func Restore(ctx context.Context, sandbox *agent.Client, dir string) error {
	f, err := os.Open(filepath.Join(dir, directory.Root))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer f.Close()
	owner := api.OwnerKeep
	if os.Geteuid() != 0 {
		owner = "0:0" // the sandbox has one user
	}
	return capture.Restore(ctx, sandbox, f, owner)
}
