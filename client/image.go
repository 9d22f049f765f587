package client

import (
	"context"
	"encoding/json"
	"io"
	"mime/multipart"
	"net/http"
	"net/textproto"
	"net/url"

	"github.com/cloche-dev/cloche/api"
)

// pullKey is the context key of the function that gets pull progress.
type pullKey struct{}

// WithPullProgress returns a context that reports pull progress to fn. It works for calls that may
// pull an image: Pull, CreateProgress, RunStream and Hold. fn is called from the calling goroutine.
func WithPullProgress(ctx context.Context, fn func(api.PullProgress)) context.Context {
	return context.WithValue(ctx, pullKey{}, fn)
}

func wantsPull(ctx context.Context) bool { return ctx.Value(pullKey{}) != nil }

// tellPull reports progress to the function in ctx, if there is one.
func tellPull(ctx context.Context, p *api.PullProgress) {
	if fn, ok := ctx.Value(pullKey{}).(func(api.PullProgress)); ok && fn != nil && p != nil {
		fn(*p)
	}
}

// Images returns the root filesystems that the caller can name in a create.
func (c *Client) Images(ctx context.Context) (api.ImageList, error) {
	var l api.ImageList
	return l, c.call(ctx, http.MethodGet, "/images", nil, nil, &l)
}

// InspectImage returns the record of an image, by name or digest.
func (c *Client) InspectImage(ctx context.Context, ref string) (api.Image, error) {
	var img api.Image
	return img, c.call(ctx, http.MethodGet, "/images/inspect", url.Values{"image": {ref}}, nil, &img)
}

// Pull makes the daemon pull an image from its registry, even if it already has one of that name.
// See WithPullProgress.
func (c *Client) Pull(ctx context.Context, req api.PullRequest) (api.Image, error) {
	return c.imageLines(ctx, "/images/pull", req)
}

// PackImage makes an image of programs of the daemon's machine.
func (c *Client) PackImage(ctx context.Context, req api.ImagePackRequest) (api.Image, error) {
	return c.imageLines(ctx, "/images/pack", req)
}

// BuildImage builds an image from a Dockerfile or a list of packages. files is a tar of the files that the
// Dockerfile copies, compressed or not, or nil. BuildImage calls fn with each event before the image; its
// error ends the build. The end of ctx ends the build too.
func (c *Client) BuildImage(ctx context.Context, req api.ImageBuildRequest, files io.Reader, fn func(api.BuildEvent) error) (api.Image, error) {
	data, err := json.Marshal(req)
	if err != nil {
		return api.Image{}, api.Errorf(api.CodeInvalid, "encode request: %w", err)
	}
	r, w := io.Pipe()
	form := multipart.NewWriter(w)
	sent := make(chan struct{})
	go func() { // ends with the request, which closes r
		defer close(sent)
		w.CloseWithError(writeBuild(form, data, files))
	}()
	defer func() { _ = r.Close(); <-sent }()
	src := &source{r: r}
	resp, err := c.send(ctx, http.MethodPost, "/images/build", nil, src, http.Header{"Content-Type": {form.FormDataContentType()}, "Accept": {"application/x-ndjson"}})
	if rerr := src.failure(); rerr != nil {
		if resp != nil {
			resp.Body.Close()
		}
		return api.Image{}, api.Errorf(api.CodeCanceled, "read the context of the build: %w", rerr)
	}
	if err != nil {
		return api.Image{}, err
	}
	defer resp.Body.Close()
	var img *api.Image
	err = c.scan(ctx, resp.Body, func(line []byte) error {
		e, err := decodeLine[api.BuildEvent](line)
		if err != nil {
			return err
		}
		if img = e.Image; img != nil {
			return nil
		}
		return fn(e)
	})
	if err != nil {
		return api.Image{}, err
	}
	if img == nil {
		return api.Image{}, brokenAnswer("the daemon ended its answer without an image")
	}
	return *img, nil
}

// writeBuild writes the parts of a build.
func writeBuild(form *multipart.Writer, request []byte, files io.Reader) error {
	part, err := form.CreatePart(textproto.MIMEHeader{"Content-Disposition": {`form-data; name="build"`}, "Content-Type": {"application/json"}})
	if err != nil {
		return err
	}
	if _, err := part.Write(request); err != nil {
		return err
	}
	if files != nil {
		if part, err = form.CreateFormFile("context", "context.tar"); err != nil {
			return err
		}
		if _, err := io.Copy(part, files); err != nil {
			return err
		}
	}
	return form.Close()
}

// CommitImage makes an image of a running sandbox: of its image and what differs from it in the root.
func (c *Client) CommitImage(ctx context.Context, ref string, req api.ImageCommitRequest) (api.Image, error) {
	var img api.Image
	p, err := sandboxPath(ref, "/image")
	if err != nil {
		return img, err
	}
	return img, c.call(ctx, http.MethodPost, p, nil, req, &img)
}

// ExportImage writes an image to w as a tar that is an OCI layout and an archive of Docker.
func (c *Client) ExportImage(ctx context.Context, ref string, w io.Writer) error {
	r, err := c.download(ctx, "/images/export", url.Values{"image": {ref}})
	if err != nil {
		return err
	}
	defer r.Close()
	_, err = io.Copy(w, r)
	return err
}

// imageLines makes a call whose answer is lines with an image as the last one.
func (c *Client) imageLines(ctx context.Context, path string, in any) (api.Image, error) {
	var img *api.Image
	err := c.lines(ctx, http.MethodPost, path, nil, in, func(line []byte) error {
		var m api.ServerMessage
		if err := decode(line, &m); err != nil {
			return err
		}
		if m.Error != nil {
			return m.Error
		}
		if m.Image != nil {
			img = m.Image
		}
		tellPull(ctx, m.Pull)
		return nil
	})
	if err != nil {
		return api.Image{}, err
	}
	if img == nil {
		return api.Image{}, brokenAnswer("the daemon ended its answer without an image")
	}
	return *img, nil
}

// ImportImage imports an image from an archive that r streams: a tar of an OCI layout, the output
// of `docker save`, or a tar of a root filesystem. Each can be compressed.
func (c *Client) ImportImage(ctx context.Context, r io.Reader, o api.ImportOptions) (api.Image, error) {
	q := url.Values{}
	for name, v := range map[string]string{"name": o.Name, "format": string(o.Format), "ref": o.Ref, "platform": o.Platform} {
		if v != "" {
			q.Set(name, v)
		}
	}
	var img api.Image
	return img, c.upload(ctx, http.MethodPost, "/images/import", q, "application/octet-stream", r, &img)
}

// RemoveImage removes a name of an image, and the image itself with its last name. By digest, it
// removes the image with all its names. An image that a sandbox or a snapshot uses is kept, and the
// error is api.ErrConflict.
func (c *Client) RemoveImage(ctx context.Context, ref string) error {
	return c.call(ctx, http.MethodDelete, "/images", url.Values{"image": {ref}}, nil, nil)
}

// PruneImages removes images to free disk space, least recently used first.
func (c *Client) PruneImages(ctx context.Context, req api.ImagePruneRequest) (api.ImagePruneResult, error) {
	var out api.ImagePruneResult
	return out, c.call(ctx, http.MethodPost, "/images/prune", nil, req, &out)
}
