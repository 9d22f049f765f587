package e2bapi

import (
	"net/http"
	"strings"
	"time"

	"github.com/cloche-dev/cloche/api"
)

// tagAnswer is a tag of a template.
type tagAnswer struct {
	Tag       string    `json:"tag"`
	BuildID   string    `json:"buildID"`
	CreatedAt time.Time `json:"createdAt"`
}

// assignTags gives the image of a template more tags.
func (s *Server) assignTags(w http.ResponseWriter, r request) error {
	var req struct {
		Target string   `json:"target"`
		Tags   []string `json:"tags"`
	}
	if err := decode(r.Request, &req); err != nil {
		return err
	}
	name, tag, err := splitTemplate(req.Target)
	if err != nil {
		return err
	}
	if len(req.Tags) == 0 {
		return fail(http.StatusBadRequest, "tags are missing")
	}
	for _, t := range req.Tags {
		if !templateTag.MatchString(t) {
			return fail(http.StatusBadRequest, "%q is not a tag of a template", clip(t))
		}
	}
	im, err := s.built(r, name, tag)
	if err != nil {
		return err
	}
	for _, t := range req.Tags {
		if _, err := s.core.TagImage(r.Context(), r.caller, im.Name, builtRef(r.caller, name, t)); err != nil {
			return err
		}
	}
	writeJSON(w, http.StatusCreated, map[string]any{"buildID": uuidOf(im.Digest), "tags": req.Tags})
	return nil
}

// removeTags removes tags of a template.
func (s *Server) removeTags(w http.ResponseWriter, r request) error {
	var req struct {
		Name string   `json:"name"`
		Tags []string `json:"tags"`
	}
	if err := decode(r.Request, &req); err != nil {
		return err
	}
	name, _, err := splitTemplate(req.Name)
	if err != nil {
		return err
	}
	for _, t := range req.Tags {
		if t == defaultTag || !templateTag.MatchString(t) {
			return fail(http.StatusBadRequest, "the tag %q cannot be removed", clip(t))
		}
		if _, err := s.built(r, name, t); err != nil {
			return err
		}
	}
	for _, t := range req.Tags {
		if err := s.core.RemoveImage(r.Context(), r.caller, builtRef(r.caller, name, t)); err != nil {
			return err
		}
	}
	w.WriteHeader(http.StatusNoContent)
	return nil
}

// tags lists the tags of a template.
func (s *Server) tags(w http.ResponseWriter, r request) error {
	name, _, err := splitTemplate(r.PathValue("id"))
	if err != nil {
		return err
	}
	images, err := s.builtImages(r, name)
	if err != nil {
		return err
	}
	if len(images) == 0 {
		return fail(http.StatusNotFound, "template '%s' not found", clip(name))
	}
	out := []tagAnswer{}
	for _, im := range images {
		t := tagAnswer{Tag: im.Name[strings.LastIndexByte(im.Name, ':')+1:], BuildID: uuidOf(im.Digest)}
		if im.PulledAt != nil {
			t.CreatedAt = *im.PulledAt
		}
		out = append(out, t)
	}
	writeJSON(w, http.StatusOK, out)
	return nil
}

// built returns the image of a tag of a template that the caller has built.
func (s *Server) built(r request, name, tag string) (api.Image, error) {
	im, err := s.core.InspectImage(r.Context(), r.caller, builtRef(r.caller, name, tag))
	if api.CodeOf(err) == api.CodeNotFound {
		if all, lerr := s.builtImages(r, name); lerr == nil && len(all) > 0 {
			return im, fail(http.StatusNotFound, "tag '%s' does not exist for template '%s'", tag, name)
		}
		return im, fail(http.StatusNotFound, "template '%s' not found", name)
	}
	return im, err
}

// builtImages are the images of all tags of a template that the caller has built.
func (s *Server) builtImages(r request, name string) (out []api.Image, err error) {
	images, err := s.core.Images(r.Context(), r.caller)
	for _, im := range images.Images {
		if strings.HasPrefix(im.Name, builtRef(r.caller, name, "")) {
			out = append(out, im)
		}
	}
	return out, err
}

// removeBuilt removes all tags of a template that the caller has built; false is no such template.
func (s *Server) removeBuilt(r request, id string) (bool, error) {
	name, _, err := splitTemplate(id)
	if err != nil {
		return false, nil //nolint:nilerr // it is the ID of something else
	}
	images, err := s.builtImages(r, name)
	for _, im := range images {
		if err == nil {
			err = s.core.RemoveImage(r.Context(), r.caller, im.Name)
		}
	}
	if api.CodeOf(err) == api.CodeConflict {
		err = fail(http.StatusBadRequest, "template '%s' is in use", name)
	}
	return len(images) > 0, err
}

// uuidOf is the ID of the build that made an image.
func uuidOf(digest string) string {
	hex := strings.TrimPrefix(digest, "sha256:")
	if len(hex) < 32 {
		return noBuild
	}
	return hex[:8] + "-" + hex[8:12] + "-" + hex[12:16] + "-" + hex[16:20] + "-" + hex[20:32]
}
