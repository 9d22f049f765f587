package e2b

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"mime/multipart"
	"net/textproto"
	"os"
	"path"
	"sync"
	"time"

	erofs "github.com/erofs/go-erofs"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/engine"
	"github.com/cloche-dev/cloche/internal/engine/inner"
)

// maxAgent bounds the files of an agent, in bytes.
const maxAgent = 64 << 20

// upload is the body of a request that writes the agent's files, and their paths. It does not change.
type upload struct {
	contentType string
	body        []byte
	paths       []string
	// program is the one that plays package inner's roles when inner.Argv0 is its first argument.
	program string
}

// uploads keeps the upload of the agent that was used last.
type uploads struct {
	mu   sync.Mutex
	of   string // the path of the agent's image
	size int64
	time time.Time
	last *upload
}

// uploadOf returns what puts an agent into a sandbox.
func (e *Engine) uploadOf(ctx context.Context, a engine.Agent) (*upload, error) {
	fi, err := os.Stat(a.Image)
	if err != nil {
		return nil, fmt.Errorf("look at the agent's image: %w", err)
	}
	u := &e.uploads
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.last != nil && u.of == a.Image+"\n"+a.Target && u.size == fi.Size() && u.time.Equal(fi.ModTime()) {
		return u.last, nil
	}
	program, err := e.inner()
	if err != nil {
		return nil, err
	}
	made, err := newUpload(ctx, a, program)
	if ctx.Err() != nil {
		return nil, ctx.Err()
	}
	if err != nil {
		return nil, api.Errorf(api.CodeInternal, "the agent's image cannot be read").WithCause(err)
	}
	u.of, u.size, u.time, u.last = a.Image+"\n"+a.Target, fi.Size(), fi.ModTime(), made
	return made, nil
}

// newUpload makes an upload of the regular files of an agent's image. The program of package inner is
// added unless one of them is the same.
func newUpload(ctx context.Context, a engine.Agent, program []byte) (*upload, error) {
	var body bytes.Buffer
	form := multipart.NewWriter(&body)
	out := &upload{contentType: form.FormDataContentType()}
	add := func(name string, data []byte) error {
		h := textproto.MIMEHeader{}
		h.Set("Content-Disposition", fmt.Sprintf(`form-data; name="file"; filename=%q`, name))
		h.Set("Content-Type", "application/octet-stream")
		w, err := form.CreatePart(h)
		if err != nil {
			return err
		}
		out.paths = append(out.paths, name)
		_, err = w.Write(data)
		return err
	}
	err := eachFile(ctx, a.Image, func(name string, data []byte) error {
		if bytes.HasPrefix(data, program) { // an image can have more after it
			out.program = path.Join(a.Target, name)
		}
		return add(path.Join(a.Target, name), data)
	})
	if err == nil && out.program == "" {
		out.program = path.Join(a.Target, inner.Argv0)
		err = add(out.program, program)
	}
	if err == nil {
		err = form.Close()
	}
	out.body = body.Bytes()
	return out, err
}

// eachFile calls f with the regular files of an EROFS image.
func eachFile(ctx context.Context, image string, f func(name string, data []byte) error) error {
	file, err := os.Open(image)
	if err != nil {
		return err
	}
	defer file.Close()
	root, err := erofs.Open(file)
	if err != nil {
		return err
	}
	left := int64(maxAgent)
	return fs.WalkDir(root, ".", func(name string, d fs.DirEntry, err error) error {
		if err != nil || ctx.Err() != nil || !d.Type().IsRegular() {
			return errors.Join(err, ctx.Err())
		}
		fi, err := d.Info()
		if err != nil {
			return err
		}
		if left -= fi.Size(); left < 0 {
			return fmt.Errorf("it has more than %d bytes", maxAgent)
		}
		data, err := fs.ReadFile(root, name)
		if err != nil {
			return err
		}
		return f(name, data)
	})
}
