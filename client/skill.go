package client

import (
	"context"
	"io"
	"net/http"
	"net/url"
	"strconv"

	"github.com/cloche-dev/cloche/api"
)

// archiveType is the content type of a zip archive with skills.
const archiveType = "application/zip"

// SkillFileOptions selects what SkillFiles lists.
type SkillFileOptions struct {
	// Path is the directory. "" is the top directory of the skill.
	Path string
	// Hidden includes names that begin with a dot.
	Hidden bool
	// Limit is the maximum number of files, up to 1000; 0 is the server's default.
	Limit int
}

// Skills returns the caller's skills, most recently changed first. With texts, it includes their
// instructions.
func (c *Client) Skills(ctx context.Context, texts bool) (api.SkillList, error) {
	var l api.SkillList
	var q url.Values
	if texts {
		q = url.Values{"instructions": {"true"}}
	}
	return l, c.call(ctx, http.MethodGet, "/skills", q, nil, &l)
}

// CreateSkill creates a skill from text.
func (c *Client) CreateSkill(ctx context.Context, spec api.SkillSpec) (api.Skill, error) {
	var sk api.Skill
	return sk, c.call(ctx, http.MethodPost, "/skills", nil, spec, &sk)
}

// GetSkill returns one skill, and who signed it.
func (c *Client) GetSkill(ctx context.Context, name string) (api.Skill, error) {
	var sk api.Skill
	p, err := skillPath(name, "")
	if err == nil {
		err = c.call(ctx, http.MethodGet, p, nil, nil, &sk)
	}
	return sk, err
}

// UpdateSkill changes the description of a skill.
func (c *Client) UpdateSkill(ctx context.Context, name string, change api.SkillChange) (api.Skill, error) {
	var sk api.Skill
	p, err := skillPath(name, "")
	if err == nil {
		err = c.call(ctx, http.MethodPatch, p, nil, change, &sk)
	}
	return sk, err
}

// RemoveSkill removes a skill. It is then empty in sandboxes that use it.
func (c *Client) RemoveSkill(ctx context.Context, name string) error {
	p, err := skillPath(name, "")
	if err != nil {
		return err
	}
	return c.call(ctx, http.MethodDelete, p, nil, nil, nil)
}

// SkillFiles lists a directory of a skill.
func (c *Client) SkillFiles(ctx context.Context, name string, o SkillFileOptions) (api.SkillFileList, error) {
	var l api.SkillFileList
	p, err := skillPath(name, "/files")
	if err != nil {
		return l, err
	}
	q := url.Values{}
	if o.Path != "" {
		q.Set("path", o.Path)
	}
	if o.Hidden {
		q.Set("hidden", "true")
	}
	if o.Limit != 0 {
		q.Set("limit", strconv.Itoa(o.Limit))
	}
	return l, c.call(ctx, http.MethodGet, p, q, nil, &l)
}

// OpenSkillFile reads a text file of a skill. The caller closes it.
func (c *Client) OpenSkillFile(ctx context.Context, name, file string) (io.ReadCloser, error) {
	p, err := skillPath(name, "/data")
	if err != nil {
		return nil, err
	}
	resp, err := c.send(ctx, http.MethodGet, p, url.Values{"path": {file}}, nil, nil)
	if err != nil {
		return nil, err
	}
	return &body{ctx: ctx, c: c, resp: resp}, nil
}

// WriteSkillFile replaces a text file of a skill with new content.
func (c *Client) WriteSkillFile(ctx context.Context, name, file string, r io.Reader) error {
	p, err := skillPath(name, "/data")
	if err != nil {
		return err
	}
	return c.upload(ctx, http.MethodPut, p, url.Values{"path": {file}}, "application/octet-stream", r, nil)
}

// RemoveSkillFile removes a file of a skill, or a directory with all its content.
func (c *Client) RemoveSkillFile(ctx context.Context, name, file string) error {
	p, err := skillPath(name, "/data")
	if err != nil {
		return err
	}
	return c.call(ctx, http.MethodDelete, p, url.Values{"path": {file}}, nil, nil)
}

// PreviewSkills lists the skills in a zip archive. The daemon does not keep the archive.
func (c *Client) PreviewSkills(ctx context.Context, archive io.Reader, o api.SkillArchive) (api.SkillPreviewList, error) {
	var l api.SkillPreviewList
	return l, c.upload(ctx, http.MethodPost, "/skills/preview", archiveQuery(o), archiveType, archive, &l)
}

// InstallSkills installs the skills of a zip archive that o selects: all of them, or none on error.
func (c *Client) InstallSkills(ctx context.Context, archive io.Reader, o api.SkillArchive) (api.SkillList, error) {
	var l api.SkillList
	return l, c.upload(ctx, http.MethodPost, "/skills/install", archiveQuery(o), archiveType, archive, &l)
}

func archiveQuery(o api.SkillArchive) url.Values {
	q := url.Values{}
	for key, value := range map[string]string{"filename": o.Filename, "suffix": o.Suffix, "subdir": o.Subdir} {
		if value != "" {
			q.Set(key, value)
		}
	}
	if len(o.Paths) > 0 {
		q["path"] = o.Paths
	}
	return q
}

// skillPath returns the URL path of a skill. It refuses an invalid name, which could change the
// path.
func skillPath(name, rest string) (string, error) {
	if !api.ValidSkillName(name) {
		return "", api.Invalid("name", "%.80q cannot name a skill", name).
			WithHint("a name has 1 to %d letters, digits, '-' and '_'", api.MaxSkillName)
	}
	return "/skills/" + url.PathEscape(name) + rest, nil
}
