package langbot

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"io"
	"os"
	"path"
	"path/filepath"
	"strings"
	"time"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/core"
)

// skillVerbs carries out the actions on skills.
type skillVerbs struct{ *Server }

// SkillVerbs are core's verbs on skills.
type SkillVerbs interface {
	// KeepSkills has the caller's skills lie below base; below core's own directory
	// where it is empty.
	KeepSkills(caller core.Caller, base string)
	Skills(ctx context.Context, caller core.Caller, texts bool) (api.SkillList, error)
	GetSkill(ctx context.Context, caller core.Caller, name string) (api.Skill, error)
	ScanSkill(ctx context.Context, caller core.Caller, dir string, src *core.SkillSource) (api.Skill, error)
	UpdateSkill(ctx context.Context, caller core.Caller, name string, c api.SkillChange) (api.Skill, error)
	RemoveSkill(ctx context.Context, caller core.Caller, name string) error
	CreateSkill(ctx context.Context, caller core.Caller, spec api.SkillSpec, src *core.SkillSource) (api.Skill, error)
}

// SkillFileVerbs are core's verbs on what skills are made of.
type SkillFileVerbs interface {
	SkillFiles(ctx context.Context, caller core.Caller, name string, o core.SkillFileOptions) (api.SkillFileList, error)
	ReadSkillFile(ctx context.Context, caller core.Caller, name, file string) ([]byte, error)
	WriteSkillFile(ctx context.Context, caller core.Caller, name, file string, content []byte) error
	PreviewSkills(ctx context.Context, caller core.Caller, archive io.Reader, o api.SkillArchive) (api.SkillPreviewList, error)
	InstallSkills(ctx context.Context, caller core.Caller, archive io.Reader, o api.SkillArchive) (api.SkillList, error)
}

// skillInfo is a skill as it is told.
type skillInfo struct {
	Name          string  `json:"name"`
	DisplayName   string  `json:"display_name"`
	Description   string  `json:"description"`
	Instructions  string  `json:"instructions"`
	PackageRoot   string  `json:"package_root"`
	EntryFile     string  `json:"entry_file"`
	PythonProject bool    `json:"python_project"`
	CreatedAt     string  `json:"created_at"`
	UpdatedAt     string  `json:"updated_at"`
	SourcePath    *string `json:"source_path,omitempty"`
}

// shelf is where the skills of a workspace lie on the host.
func (s skillVerbs) shelf(p placement) string {
	return filepath.Join(cmp.Or(s.settings().skills, s.o.SkillsDir), "tenants", p.durable())
}

func (s skillVerbs) skillInfo(p placement, sk api.Skill) skillInfo {
	at := func(t time.Time) string { return t.UTC().Format("2006-01-02T15:04:05.000000-07:00") }
	return skillInfo{
		Name: sk.Name, DisplayName: sk.DisplayName, Description: sk.Description, Instructions: sk.Instructions,
		PackageRoot: filepath.Join(s.shelf(p), sk.Dir), EntryFile: sk.Entry, PythonProject: sk.PythonProject,
		CreatedAt: at(sk.CreatedAt), UpdatedAt: at(sk.UpdatedAt),
	}
}

func (s skillVerbs) skillInfos(p placement, all []api.Skill) any {
	out := []skillInfo{}
	for _, sk := range all {
		out = append(out, s.skillInfo(p, sk))
	}
	return map[string]any{"skills": out}
}

// skillActions are the verbs on skills. Whatever fails there is a mistake of the
// request to the client.
func skillActions() map[string]action {
	out := map[string]action{}
	long := map[string]pace{"box_preview_skill_zip": paceWork, "box_install_skill_zip": paceWork}
	for name, do := range map[string]func(skillVerbs, context.Context, call) (any, error){
		"box_list_skills": skillVerbs.listSkills, "box_get_skill": skillVerbs.getSkill, "box_create_skill": skillVerbs.createSkill,
		"box_update_skill": skillVerbs.updateSkill, "box_delete_skill": skillVerbs.deleteSkill, "box_scan_skill_directory": skillVerbs.scanSkill,
		"box_list_skill_files": skillVerbs.listSkillFiles, "box_read_skill_file": skillVerbs.readSkillFile,
		"box_write_skill_file": skillVerbs.writeSkillFile, "box_preview_skill_zip": skillVerbs.previewSkills,
		"box_install_skill_zip": skillVerbs.installSkills,
	} {
		out[name] = action{pace: long[name], do: func(s *Server, ctx context.Context, c call) (any, error) {
			data, err := do(skillVerbs{s}, ctx, c)
			if e, ok := errors.AsType[*api.Error](err); ok {
				return nil, failed(classValidation, "%w", e)
			}
			return data, err
		}}
	}
	return out
}

// skillRequest is the data of all of them.
type skillRequest struct {
	Name          string          `json:"name"`
	Path          string          `json:"path"`
	Content       string          `json:"content"`
	IncludeHidden bool            `json:"include_hidden"`
	MaxEntries    *whole          `json:"max_entries"`
	Skill         json.RawMessage `json:"skill"`
	FileKey       string          `json:"file_key"`
	Filename      string          `json:"filename"`
	Subdir        string          `json:"source_subdir"`
	Suffix        *string         `json:"target_suffix"`
	Paths         []string        `json:"source_paths"`
	OnePath       string          `json:"source_path"`
}

type skillFields struct {
	Name         string  `json:"name"`
	DisplayName  *string `json:"display_name"`
	Description  *string `json:"description"`
	Instructions *string `json:"instructions"`
	PackageRoot  string  `json:"package_root"`
}

func (s skillVerbs) listSkills(ctx context.Context, c call) (any, error) {
	l, err := s.core.Skills(ctx, c.place.caller(), true)
	return s.skillInfos(c.place, l.Skills), err
}

func (s skillVerbs) getSkill(ctx context.Context, c call) (any, error) {
	r, err := decode[skillRequest](c.data)
	if err != nil {
		return nil, err
	}
	sk, err := s.core.GetSkill(ctx, c.place.caller(), r.Name)
	if api.CodeOf(err) == api.CodeNotFound {
		return map[string]any{"skill": nil}, nil
	}
	return map[string]any{"skill": s.skillInfo(c.place, sk)}, err
}

func (s skillVerbs) createSkill(ctx context.Context, c call) (any, error) {
	r, err := decode[skillRequest](c.data)
	if err != nil {
		return nil, err
	}
	f, err := decode[skillFields](r.Skill)
	if err != nil {
		return nil, err
	}
	text := func(p *string) string {
		if p == nil {
			return ""
		}
		return *p
	}
	spec := api.SkillSpec{Name: f.Name, DisplayName: text(f.DisplayName), Description: text(f.Description), Instructions: text(f.Instructions)}
	var src *core.SkillSource
	if f.PackageRoot != "" {
		at, err := s.source("package_root", c.place, f.PackageRoot)
		if err != nil {
			return nil, err
		}
		defer at.Dir.Close()
		src = &at
	}
	sk, err := s.core.CreateSkill(ctx, c.place.caller(), spec, src)
	return map[string]any{"skill": s.skillInfo(c.place, sk)}, err
}

// source opens a directory that is to become a skill: of the workspace's skills or of
// its own directory, below which no link is followed. The field is what names it.
func (s skillVerbs) source(field string, p placement, dir string) (core.SkillSource, error) {
	roots := []string{s.shelf(p)}
	if cfg := s.settings(); cfg.workspace != "" {
		roots = append(roots, filepath.Join(cfg.workspace, "tenants", p.durable()))
	}
	for _, root := range roots {
		if dir = path.Clean(dir); !below(root, dir) {
			continue
		}
		f, err := os.Open(root)
		if err != nil {
			return core.SkillSource{}, failed(classValidation, "%s: it cannot be opened", field)
		}
		rel, err := filepath.Rel(root, dir)
		return core.SkillSource{Dir: f, Path: rel}, err
	}
	return core.SkillSource{}, failed(classValidation, "%s: it is neither in the Workspace's skills nor in its directory", field)
}

func (s skillVerbs) updateSkill(ctx context.Context, c call) (any, error) {
	r, err := decode[skillRequest](c.data)
	if err != nil {
		return nil, err
	}
	f, err := decode[skillFields](r.Skill)
	if err != nil {
		return nil, err
	}
	if f.Name != "" && f.Name != r.Name {
		return nil, failed(classValidation, "skill.name: a skill keeps its name")
	}
	if f.PackageRoot != "" {
		was, err := s.core.GetSkill(ctx, c.place.caller(), r.Name)
		if err != nil {
			return nil, err
		}
		if path.Clean(f.PackageRoot) != filepath.Join(s.shelf(c.place), was.Dir) {
			return nil, failed(classValidation, "skill.package_root: a skill keeps its place")
		}
	}
	sk, err := s.core.UpdateSkill(ctx, c.place.caller(), r.Name, api.SkillChange{DisplayName: f.DisplayName, Description: f.Description, Instructions: f.Instructions})
	return map[string]any{"skill": s.skillInfo(c.place, sk)}, err
}

func (s skillVerbs) deleteSkill(ctx context.Context, c call) (any, error) {
	r, err := decode[skillRequest](c.data)
	if err != nil {
		return nil, err
	}
	return map[string]string{"deleted": r.Name}, s.core.RemoveSkill(ctx, c.place.caller(), r.Name)
}

func (s skillVerbs) scanSkill(ctx context.Context, c call) (any, error) {
	r, err := decode[skillRequest](c.data)
	if err != nil {
		return nil, err
	}
	rel := r.Path
	if filepath.IsAbs(rel) {
		// What create takes can be looked at first: LangBot does so with a directory of
		// the workspace before it makes a skill of it.
		if !below(s.shelf(c.place), rel) {
			return s.scanSource(ctx, c.place, rel)
		}
		if rel, err = filepath.Rel(s.shelf(c.place), rel); err != nil {
			return nil, err
		}
	}
	sk, err := s.core.ScanSkill(ctx, c.place.caller(), rel, nil)
	return s.skillInfo(c.place, sk), err
}

// scanSource reads the package in a directory that may become a skill.
func (s skillVerbs) scanSource(ctx context.Context, p placement, dir string) (any, error) {
	src, err := s.source("path", p, dir)
	if err != nil {
		return nil, err
	}
	defer src.Dir.Close()
	sk, err := s.core.ScanSkill(ctx, p.caller(), "", &src)
	info := s.skillInfo(p, sk)
	info.PackageRoot = filepath.Join(src.Dir.Name(), src.Path, sk.Dir)
	return info, err
}

func (s skillVerbs) listSkillFiles(ctx context.Context, c call) (any, error) {
	r, err := decode[skillRequest](c.data)
	if err != nil {
		return nil, err
	}
	o := core.SkillFileOptions{Path: r.Path, Hidden: r.IncludeHidden}
	if r.MaxEntries != nil {
		if o.Limit = int(*r.MaxEntries); o.Limit < 1 {
			return nil, failed(classValidation, "max_entries: it must be 1 at least")
		}
	}
	l, err := s.core.SkillFiles(ctx, c.place.caller(), r.Name, o)
	entries := []map[string]any{}
	for _, f := range l.Files {
		e := map[string]any{"path": f.Path, "name": f.Name, "is_dir": f.Type == api.TypeDir, "size": nil}
		if f.Type != api.TypeDir {
			e["size"] = f.Size
		}
		entries = append(entries, e)
	}
	return map[string]any{"skill": map[string]string{"name": r.Name}, "base_path": l.Path, "entries": entries, "truncated": l.Truncated}, err
}

func (s skillVerbs) readSkillFile(ctx context.Context, c call) (any, error) {
	r, err := decode[skillRequest](c.data)
	if err != nil {
		return nil, err
	}
	data, err := s.core.ReadSkillFile(ctx, c.place.caller(), r.Name, r.Path)
	return map[string]any{"skill": map[string]string{"name": r.Name}, "path": r.Path, "content": string(data)}, err
}

func (s skillVerbs) writeSkillFile(ctx context.Context, c call) (any, error) {
	r, err := decode[skillRequest](c.data)
	if err != nil {
		return nil, err
	}
	err = s.core.WriteSkillFile(ctx, c.place.caller(), r.Name, r.Path, []byte(r.Content))
	return map[string]any{"skill": map[string]string{"name": r.Name}, "path": r.Path, "bytes_written": len(r.Content)}, err
}

// archive takes the upload of a request, which is used up by it.
func (c call) archive() (io.Reader, api.SkillArchive, error) {
	r, err := decode[skillRequest](c.data)
	if err != nil {
		return nil, api.SkillArchive{}, err
	}
	data, err := c.peer.uploads.use(r.FileKey)
	if err != nil {
		return nil, api.SkillArchive{}, err
	}
	o := api.SkillArchive{Filename: r.Filename, Suffix: "upload", Subdir: r.Subdir, Paths: r.Paths}
	if r.Suffix != nil {
		o.Suffix = *r.Suffix
	}
	if strings.TrimSpace(r.OnePath) != "" {
		o.Paths = append(o.Paths, r.OnePath)
	}
	return bytes.NewReader(data), o, nil
}

func (s skillVerbs) previewSkills(ctx context.Context, c call) (any, error) {
	archive, o, err := c.archive()
	if err != nil {
		return nil, err
	}
	o.Paths = nil
	l, err := s.core.PreviewSkills(ctx, c.place.caller(), archive, o)
	out := []skillInfo{}
	for _, sk := range l.Skills {
		info := s.skillInfo(c.place, sk.Skill)
		info.SourcePath = &sk.Path
		out = append(out, info)
	}
	return map[string]any{"skills": out}, err
}

func (s skillVerbs) installSkills(ctx context.Context, c call) (any, error) {
	archive, o, err := c.archive()
	if err != nil {
		return nil, err
	}
	l, err := s.core.InstallSkills(ctx, c.place.caller(), archive, o)
	return s.skillInfos(c.place, l.Skills), err
}
