package e2bapi

import (
	"net/http"
	"strings"
	"time"

	"github.com/cloche-dev/cloche/api"
)

// The default templates of E2B's clients. Without an image of that name, they are the machine's own
// programs.
const (
	templateBase = "base"
	templateCode = "code-interpreter-v1"
)

// imageOf returns the image of a template: one that the caller has built, the name of another image that this
// daemon has, or the machine's own programs for the default templates.
func (s *Server) imageOf(r request, template string) (string, error) {
	if name, tag, err := splitTemplate(template); err == nil {
		im, err := s.built(r, name, tag)
		if err == nil {
			return im.Name, nil
		}
		if f, ok := err.(*failure); !ok || f.status != http.StatusNotFound { //nolint:errorlint // built wraps nothing
			return "", err
		} else if strings.HasPrefix(f.message, "tag ") {
			return "", err
		}
	}
	if template == templateBase {
		return api.DefaultImage, nil
	}
	im, err := s.core.InspectImage(r.Context(), r.caller, template)
	switch api.CodeOf(err) {
	case api.CodeNotFound:
		if template == templateCode {
			return api.DefaultImage, nil
		}
		return "", fail(http.StatusNotFound, "template '%s' not found: a template is built by its owner, or an image of this daemon, and `cloche image ls` lists them", clip(template))
	case api.CodeInvalid:
		return "", fail(http.StatusBadRequest, "%q is not the name of a template", clip(template))
	}
	return im.Name, err
}

// templateAnswer is one template in a list.
type templateAnswer struct {
	TemplateID string    `json:"templateID"`
	BuildID    string    `json:"buildID"`
	Public     bool      `json:"public"`
	Aliases    []string  `json:"aliases"`
	Names      []string  `json:"names"`
	CreatedAt  time.Time `json:"createdAt"`
	UpdatedAt  time.Time `json:"updatedAt"`
}

// noBuild is the ID of a build that this server did not make.
const noBuild = "00000000-0000-0000-0000-000000000000"

func (s *Server) templates(w http.ResponseWriter, r request) error {
	images, err := s.core.Images(r.Context(), r.caller)
	if err != nil {
		return err
	}
	out := []templateAnswer{{TemplateID: templateBase, BuildID: noBuild, Aliases: []string{templateBase}, Names: []string{templateBase}}}
	for _, im := range images.Images {
		if im.Name == api.DefaultImage {
			continue
		}
		name := im.Name
		if own, ok := strings.CutPrefix(name, api.BuiltRegistry+"/"+r.caller.Tenant+"/"); ok {
			name = strings.TrimSuffix(own, ":"+defaultTag)
		}
		t := templateAnswer{TemplateID: name, BuildID: uuidOf(im.Digest), Aliases: []string{name}, Names: []string{name}}
		if im.CreatedAt != nil {
			t.CreatedAt, t.UpdatedAt = *im.CreatedAt, *im.CreatedAt
		}
		out = append(out, t)
	}
	writeJSON(w, http.StatusOK, out)
	return nil
}

// aliasOrTags serves two routes that one pattern each could not tell apart.
func (s *Server) aliasOrTags(w http.ResponseWriter, r request) error {
	switch {
	case r.PathValue("id") == "aliases":
		return s.alias(w, r, r.PathValue("part"))
	case r.PathValue("part") == "tags":
		return s.tags(w, r)
	}
	return fail(http.StatusNotFound, "there is no such route")
}

// alias says whether a template exists.
func (s *Server) alias(w http.ResponseWriter, r request, name string) error {
	if _, err := s.imageOf(r, name); err != nil {
		return err
	}
	writeJSON(w, http.StatusOK, map[string]any{"templateID": name, "public": false})
	return nil
}
