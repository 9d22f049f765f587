package httpapi

import (
	"fmt"
	"io"
	"net/http"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/core"
)

// skills serves the routes of skills.
type skills struct{ *Server }

func (s skills) routes() []route {
	return []route{
		{http.MethodGet, "/v1/skills", "list_skills", paceCall, s.skills},
		{http.MethodPost, "/v1/skills", "create_skill", paceCall, s.createSkill},
		{http.MethodPost, "/v1/skills/preview", "create_skill", paceTransfer, s.previewSkills},
		{http.MethodPost, "/v1/skills/install", "create_skill", paceTransfer, s.installSkills},
		{http.MethodGet, "/v1/skills/{name}", "get_skill", paceCall, s.getSkill},
		{http.MethodPatch, "/v1/skills/{name}", "change_skill", paceCall, s.updateSkill},
		{http.MethodDelete, "/v1/skills/{name}", "remove_skill", paceCall, s.removeSkill},
		{http.MethodGet, "/v1/skills/{name}/files", "get_skill", paceCall, s.skillFiles},
		{http.MethodGet, "/v1/skills/{name}/data", "get_skill", paceCall, s.readSkillFile},
		{http.MethodPut, "/v1/skills/{name}/data", "change_skill", paceCall, s.writeSkillFile},
		{http.MethodDelete, "/v1/skills/{name}/data", "change_skill", paceCall, s.removeSkillFile},
	}
}

const (
	// archiveType is a zip with skills.
	archiveType = "application/zip"
	// maxSkillFile is one byte more than a file of a skill may have, so that one that
	// is too large is seen to be.
	maxSkillFile = 1<<20 + 1
	// maxSkillPaths is how many skills of one archive are named.
	maxSkillPaths = 512
)

func (s skills) skills(w http.ResponseWriter, r request) error {
	q := queryOf(r)
	texts := q.boolean("instructions")
	if err := q.end(); err != nil {
		return err
	}
	l, err := s.core.Skills(r.Context(), r.caller, texts)
	if err != nil {
		return err
	}
	l.Skills = nonNil(l.Skills)
	writeJSON(w, http.StatusOK, l)
	return nil
}

func (s skills) createSkill(w http.ResponseWriter, r request) error {
	var spec api.SkillSpec
	if err := queryOf(r).end(); err != nil {
		return err
	}
	if err := s.readJSON(w, r, &spec); err != nil {
		return err
	}
	return answerSkill(w, http.StatusCreated)(s.core.CreateSkill(r.Context(), r.caller, spec, nil))
}

func (s skills) getSkill(w http.ResponseWriter, r request) error {
	if err := queryOf(r).end(); err != nil {
		return err
	}
	return answerSkill(w, http.StatusOK)(s.core.GetSkill(r.Context(), r.caller, r.PathValue("name")))
}

func (s skills) updateSkill(w http.ResponseWriter, r request) error {
	var c api.SkillChange
	if err := queryOf(r).end(); err != nil {
		return err
	}
	if err := s.readJSON(w, r, &c); err != nil {
		return err
	}
	return answerSkill(w, http.StatusOK)(s.core.UpdateSkill(r.Context(), r.caller, r.PathValue("name"), c))
}

func answerSkill(w http.ResponseWriter, status int) func(api.Skill, error) error {
	return func(sk api.Skill, err error) error {
		if err == nil {
			writeJSON(w, status, sk)
		}
		return err
	}
}

func (s skills) removeSkill(w http.ResponseWriter, r request) error {
	return done(w, queryOf(r).end(), func() error { return s.core.RemoveSkill(r.Context(), r.caller, r.PathValue("name")) })
}

func (s skills) skillFiles(w http.ResponseWriter, r request) error {
	q := queryOf(r)
	o := core.SkillFileOptions{Path: q.str("path"), Hidden: q.boolean("hidden"), Limit: int(q.integer("limit", 0, 1, 1000))}
	if err := q.end(); err != nil {
		return err
	}
	l, err := s.core.SkillFiles(r.Context(), r.caller, r.PathValue("name"), o)
	if err != nil {
		return err
	}
	l.Files = nonNil(l.Files)
	writeJSON(w, http.StatusOK, l)
	return nil
}

func (s skills) readSkillFile(w http.ResponseWriter, r request) error {
	q := queryOf(r)
	path := q.path("path")
	if err := q.end(); err != nil {
		return err
	}
	data, err := s.core.ReadSkillFile(r.Context(), r.caller, r.PathValue("name"), path)
	if err != nil {
		return err
	}
	w.Header().Set("Content-Type", "application/octet-stream")
	out := newRawWriter(w)
	defer out.close()
	if _, err := out.Write(data); err != nil {
		return fmt.Errorf("send file of a skill: %w", err)
	}
	return nil
}

func (s skills) writeSkillFile(w http.ResponseWriter, r request) error {
	q := queryOf(r)
	path := q.path("path")
	if err := q.end(); err != nil {
		return err
	}
	if err := contentType(r, "application/octet-stream"); err != nil {
		return err
	}
	in := newRawReader(w, r)
	defer in.close()
	data, err := io.ReadAll(io.LimitReader(in, maxSkillFile))
	return done(w, err, func() error {
		return s.core.WriteSkillFile(r.Context(), r.caller, r.PathValue("name"), path, data)
	})
}

func (s skills) removeSkillFile(w http.ResponseWriter, r request) error {
	q := queryOf(r)
	path := q.path("path")
	return done(w, q.end(), func() error {
		return s.core.RemoveSkillFile(r.Context(), r.caller, r.PathValue("name"), path)
	})
}

func (s skills) previewSkills(w http.ResponseWriter, r request) error {
	return s.withArchive(w, r, func(in io.Reader, o api.SkillArchive) error {
		l, err := s.core.PreviewSkills(r.Context(), r.caller, in, o)
		if err == nil {
			l.Skills = nonNil(l.Skills)
			writeJSON(w, http.StatusOK, l)
		}
		return err
	})
}

func (s skills) installSkills(w http.ResponseWriter, r request) error {
	return s.withArchive(w, r, func(in io.Reader, o api.SkillArchive) error {
		l, err := s.core.InstallSkills(r.Context(), r.caller, in, o)
		if err == nil {
			l.Skills = nonNil(l.Skills)
			writeJSON(w, http.StatusCreated, l)
		}
		return err
	})
}

// withArchive runs fn with the archive that is the request's body, and with what
// its query says of it.
func (s skills) withArchive(w http.ResponseWriter, r request, fn func(io.Reader, api.SkillArchive) error) error {
	q := queryOf(r)
	o := api.SkillArchive{Filename: q.str("filename"), Suffix: q.str("suffix"), Subdir: q.str("subdir"), Paths: q.all("path")}
	if len(o.Paths) > maxSkillPaths {
		_ = q.fail("path", "%d skills were named", len(o.Paths))
	}
	if err := q.end(); err != nil {
		return err
	}
	if err := contentType(r, archiveType); err != nil {
		return err
	}
	in := newRawReader(w, r)
	defer in.close()
	return fn(in, o)
}
