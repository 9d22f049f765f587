package httpapi

import (
	"context"
	"errors"
	"io"
	"mime"
	"mime/multipart"
	"net/http"
	"sync"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/core"
)

// images serves the routes of images.
type images struct{ *Server }

func (s images) routes() []route {
	return []route{
		{http.MethodGet, "/v1/images", "images", paceCall, s.images},
		{http.MethodDelete, "/v1/images", "remove_image", paceCall, s.removeImage},
		{http.MethodGet, "/v1/images/inspect", "inspect_image", paceCall, s.inspectImage},
		{http.MethodPost, "/v1/images/pull", "pull_image", paceWork, s.pullImage},
		{http.MethodPost, "/v1/images/import", "import_image", paceTransfer, s.importImage},
		{http.MethodPost, "/v1/images/pack", "pack_image", paceWork, s.packImage},
		{http.MethodPost, "/v1/images/build", "build_image", paceTransfer, s.buildImage},
		{http.MethodPost, "/v1/sandboxes/{ref}/image", "commit_image", paceWork, s.commitImage},
		{http.MethodGet, "/v1/images/export", "export_image", paceTransfer, s.exportImage},
		{http.MethodPost, "/v1/images/prune", "prune_images", paceWork, s.pruneImages},
	}
}

func (s images) images(w http.ResponseWriter, r request) error {
	if err := queryOf(r).end(); err != nil {
		return err
	}
	l, err := s.core.Images(r.Context(), r.caller)
	if err != nil {
		return err
	}
	l.Images = nonNil(l.Images)
	writeJSON(w, http.StatusOK, l)
	return nil
}

func (s images) inspectImage(w http.ResponseWriter, r request) error {
	ref, err := imageOf(r)
	if err != nil {
		return err
	}
	img, err := s.core.InspectImage(r.Context(), r.caller, ref)
	if err != nil {
		return err
	}
	writeJSON(w, http.StatusOK, img)
	return nil
}

func (s images) removeImage(w http.ResponseWriter, r request) error {
	ref, err := imageOf(r)
	if err != nil {
		return err
	}
	if err := s.core.RemoveImage(context.WithoutCancel(r.Context()), r.caller, ref); err != nil {
		return err
	}
	w.WriteHeader(http.StatusNoContent)
	return nil
}

// imageOf takes the reference of an image, which may have slashes and so stands
// in no path.
func imageOf(r request) (string, error) {
	q := queryOf(r)
	ref := q.str("image")
	if ref == "" && q.err == nil {
		q.fail("image", `query parameter "image" is missing`).WithHint("give the name or the digest of an image")
	}
	return ref, q.end()
}

func (s images) pullImage(w http.ResponseWriter, r request) error {
	var req api.PullRequest
	if err := queryOf(r).end(); err != nil {
		return err
	}
	if err := s.readJSON(w, r, &req); err != nil {
		return err
	}
	return s.withProgress(w, r, func(ctx context.Context) (api.Image, error) {
		return s.core.PullImage(ctx, r.caller, req)
	})
}

func (s images) packImage(w http.ResponseWriter, r request) error {
	var req api.ImagePackRequest
	if err := queryOf(r).end(); err != nil {
		return err
	}
	if err := s.readJSON(w, r, &req); err != nil {
		return err
	}
	return s.withProgress(w, r, func(ctx context.Context) (api.Image, error) {
		return s.core.PackImage(ctx, r.caller, req)
	})
}

// withProgress answers with the image, after lines of how far it is where the
// caller takes them. The status is sent with the first line, so that a refusal is
// an answer of its own.
func (s images) withProgress(w http.ResponseWriter, r request, do func(context.Context) (api.Image, error)) error {
	ctx, cancel := s.lasting(r)
	defer cancel()
	if !accepts(r, ndjson) {
		img, err := do(ctx)
		if err != nil {
			return cut(ctx, err)
		}
		writeJSON(w, http.StatusOK, img)
		return nil
	}
	lines := newLineWriter(w, http.StatusOK)
	defer lines.close()
	stop := sync.OnceFunc(s.keepAlive(r, cancel, lines.beat))
	defer stop()
	img, err := do(core.WithPullProgress(ctx, func(p api.PullProgress) {
		// A failed progress report does not stop the pull. Only the context does.
		_ = lines.write(api.ServerMessage{Pull: &p})
	}))
	stop()
	if err != nil {
		return lines.fail(cut(ctx, err), r)
	}
	return lines.write(api.ServerMessage{Image: &img})
}

// buildImage takes the request as JSON, or as the part "build" of a form whose part "context" is a tar of
// files. The context is read before anything is answered.
func (s images) buildImage(w http.ResponseWriter, r request) error {
	if err := queryOf(r).end(); err != nil {
		return err
	}
	var req api.ImageBuildRequest
	var files io.Reader
	var in *rawReader
	if kind, params, err := mime.ParseMediaType(r.Header.Get("Content-Type")); err == nil && kind == "multipart/form-data" {
		in = newRawReader(w, r)
		defer in.close()
		if files, err = s.buildForm(multipart.NewReader(in, params["boundary"]), &req); err != nil {
			return err
		}
	} else if err := s.readJSON(w, r, &req); err != nil {
		return err
	}
	ctx, cancel := s.lasting(r)
	defer cancel()
	if !accepts(r, ndjson) {
		img, err := s.core.BuildImage(ctx, r.caller, req, files, func(api.BuildEvent) {})
		if err != nil {
			return cut(ctx, err)
		}
		writeJSON(w, http.StatusOK, img)
		return nil
	}
	lines := newLineWriter(w, http.StatusOK)
	defer lines.close()
	alive := sync.OnceValue(func() func() { return sync.OnceFunc(s.keepAlive(r, cancel, lines.beat)) })
	if files == nil {
		alive()
	}
	img, err := s.core.BuildImage(ctx, r.caller, req, files, func(e api.BuildEvent) {
		alive()
		// A build goes on as long as its caller is there.
		_ = lines.write(e)
	})
	alive()()
	if err != nil {
		return lines.fail(cut(ctx, err), r)
	}
	return lines.write(api.BuildEvent{Image: &img})
}

// buildForm reads the first part of a form and returns the second, or nil.
func (s images) buildForm(form *multipart.Reader, req *api.ImageBuildRequest) (io.Reader, error) {
	malformed := func(err error) error {
		return api.Invalid("body", "the form is malformed").WithHint(`send the part "build" with JSON, then the part "context" with a tar`).WithCause(err)
	}
	first, err := form.NextPart()
	if err != nil || first.FormName() != "build" {
		return nil, malformed(err)
	}
	data, err := io.ReadAll(io.LimitReader(first, s.maxBody+1))
	if err != nil {
		return nil, malformed(err)
	}
	if int64(len(data)) > s.maxBody {
		return nil, api.Errorf(api.CodeTooLarge, "the part \"build\" is over %d bytes", s.maxBody)
	}
	if err := decodeJSON(data, req); err != nil {
		return nil, err
	}
	second, err := form.NextPart()
	switch {
	case errors.Is(err, io.EOF):
		return nil, nil
	case err != nil || second.FormName() != "context":
		return nil, malformed(err)
	}
	return second, nil
}

// exportImage answers with a tar.
func (s images) exportImage(w http.ResponseWriter, r request) error {
	ref, err := imageOf(r)
	if err != nil {
		return err
	}
	return raw(w, r, "application/x-tar", func(out io.Writer) error {
		return s.core.ExportImage(r.Context(), r.caller, ref, out)
	})
}

// commitImage makes an image of a sandbox.
func (s images) commitImage(w http.ResponseWriter, r request) error {
	var req api.ImageCommitRequest
	if err := queryOf(r).end(); err != nil {
		return err
	}
	if err := s.readJSON(w, r, &req); err != nil {
		return err
	}
	ctx, cancel := s.lasting(r)
	defer cancel()
	img, err := s.core.CommitImage(ctx, r.caller, r.ref(), req)
	if err != nil {
		return cut(ctx, err)
	}
	writeJSON(w, http.StatusOK, img)
	return nil
}

// importImage takes the archive as the body, whatever it is.
func (s images) importImage(w http.ResponseWriter, r request) error {
	q := queryOf(r)
	o := api.ImportOptions{
		Name: q.str("name"), Format: api.ImageFormat(q.str("format")), Ref: q.str("ref"), Platform: q.str("platform"),
	}
	if err := q.end(); err != nil {
		return err
	}
	if err := contentType(r, "application/octet-stream"); err != nil {
		return err
	}
	in := newRawReader(w, r)
	defer in.close()
	img, err := s.core.ImportImage(r.Context(), r.caller, o, in)
	if err != nil {
		return err
	}
	writeJSON(w, http.StatusOK, img)
	return nil
}

func (s images) pruneImages(w http.ResponseWriter, r request) error {
	var req api.ImagePruneRequest
	if err := queryOf(r).end(); err != nil {
		return err
	}
	if err := s.readOptionalJSON(w, r, &req); err != nil {
		return err
	}
	out, err := s.core.PruneImages(context.WithoutCancel(r.Context()), r.caller, req)
	if err != nil {
		return err
	}
	out.Removed = nonNil(out.Removed)
	writeJSON(w, http.StatusOK, out)
	return nil
}

// pull reports how far the image of a create is.
func (k *socket) pull(p api.PullProgress) {
	ctx, cancel := context.WithTimeout(k.ctx, stepTimeout)
	defer cancel()
	_ = k.send(ctx, api.ServerMessage{Pull: &p})
}
