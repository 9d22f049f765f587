package sandbox

import (
	"path"
	"strings"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/cli/command"
	"github.com/cloche-dev/cloche/internal/terminal"
)

// applyRules reads each PATH:none|ro|rw of --rule, in which PATH is absolute and
// inside, and puts it on the mount that holds it.
func applyRules(s *api.SandboxSpec, texts []string) error {
	for _, text := range texts {
		bad := func(why string) error {
			return api.Invalid("rules", "--rule %q %s", terminal.Clip(text), why).
				WithHint("write --rule PATH:none or --rule PATH:ro, PATH being one inside, below a mount or the workspace, for example --rule /data/secrets:none")
		}
		i := strings.LastIndexByte(text, ':')
		if i < 0 {
			return bad("has no access")
		}
		p, access := path.Clean(text[:i]), api.PathAccess(text[i+1:])
		switch {
		case !path.IsAbs(p):
			return bad("has a path that is not absolute")
		case access != api.AccessNone && access != api.AccessRead && access != api.AccessWrite:
			return bad("ends with something other than none, ro or rw")
		}
		if err := command.CheckText("rules", p); err != nil {
			return err
		}
		rules, target := holderOf(s, p)
		if rules == nil {
			return bad("is in no mount, and not in the workspace")
		}
		*rules = append(*rules, api.PathRule{Path: strings.TrimPrefix(p, target+"/"), Access: access})
	}
	return nil
}

// holderOf returns the deepest mount or workspace that contains p, or nil.
func holderOf(s *api.SandboxSpec, p string) (rules *[]api.PathRule, target string) {
	for i := range s.Mounts {
		if t := path.Clean(s.Mounts[i].Target); strings.HasPrefix(p, t+"/") && len(t) > len(target) {
			rules, target = &s.Mounts[i].Rules, t
		}
	}
	at := api.DefaultWorkspacePath
	if s.Workspace != nil && s.Workspace.Path != "" {
		at = path.Clean(s.Workspace.Path)
	}
	if !strings.HasPrefix(p, at+"/") || len(at) <= len(target) {
		return rules, target
	}
	if s.Workspace == nil {
		s.Workspace = &api.Workspace{}
	}
	return &s.Workspace.Rules, at
}
