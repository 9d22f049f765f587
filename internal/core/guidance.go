package core

import (
	"cmp"
	"context"
	"fmt"
	"path"
	"strings"
	"time"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/policy"
)

const (
	// Long lists waste space in a model's prompt.
	maxGuidanceNames = 20
	maxGuidanceText  = 300
)

// Guidance returns a description of a sandbox for a model: of an existing one, or of one as it
// would be created.
func (s *Service) Guidance(ctx context.Context, caller Caller, o api.GuidanceOptions) (api.Guidance, error) {
	if o.Sandbox != "" && (o.Profile != "" || o.AllSkills) {
		return api.Guidance{}, api.Invalid("sandbox", "a sandbox is named, and what another would be made with").
			WithHint("a sandbox has its profile and its skills; leave these out")
	}
	if o.Sandbox != "" {
		sb, err := s.opts.Sandboxes.Get(caller, o.Sandbox)
		if err != nil {
			return api.Guidance{}, err
		}
		g, err := s.guidance(ctx, sb)
		g.Sandbox = sb.ID
		return g, err
	}
	spec := api.SandboxSpec{Profile: o.Profile}
	if o.AllSkills {
		spec.Skills = []api.SkillUse{{Name: api.AllSkills}}
	}
	answer, err := s.ExplainPolicy(ctx, caller, api.PolicyQuestion{Verb: string(policy.VerbCreate), Spec: spec})
	switch {
	case err != nil:
		return api.Guidance{}, err
	case answer.Refusal != nil:
		return api.Guidance{}, answer.Refusal
	case answer.Spec == nil:
		return api.Guidance{}, api.Errorf(api.CodeInternal, "policy grants a sandbox and does not say which")
	}
	return s.guidance(ctx, sandboxOf(*answer.Spec, caller.Tenant))
}

// sandboxOf returns the record of a sandbox as it would be created.
func sandboxOf(spec api.SandboxSpec, tenant string) api.Sandbox {
	sb := api.Sandbox{
		Tenant: tenant, Profile: spec.Profile, Image: spec.Image, Network: spec.Network, Egress: spec.Egress, Endpoints: spec.Endpoints,
		Mounts: spec.Mounts, Limits: spec.Limits, Skills: spec.Skills, Cwd: spec.Cwd, User: spec.User, Sudo: spec.Sudo,
	}
	if spec.Workspace != nil {
		sb.Workspace = *spec.Workspace
	}
	sb.ReadOnlyRoot = spec.ReadOnlyRoot != nil && *spec.ReadOnlyRoot
	return sb
}

func (s *Service) guidance(ctx context.Context, sb api.Sandbox) (api.Guidance, error) {
	g := api.Guidance{
		Profile: sb.Profile, Network: cmp.Or(sb.Network, api.NetworkNone), Limits: sb.Limits,
		Workspace: cmp.Or(sb.Workspace.Path, api.DefaultWorkspacePath), WorkspaceReadOnly: sb.Workspace.ReadOnly,
		WorkspaceKept: sb.Workspace.Name != "" && !sb.Workspace.Drop || sb.Workspace.Dir != "",
	}
	if len(sb.Skills) > 0 && s.opts.Skills != nil {
		all, err := s.opts.Skills.List(ctx, sb.Tenant)
		if err != nil {
			return g, err
		}
		has := map[string]bool{}
		for _, use := range sb.Skills {
			has[use.Name] = true
		}
		for _, sk := range all.Skills {
			if has[sk.Name] || has[api.AllSkills] {
				g.Skills = append(g.Skills, api.GuidanceSkill{
					Name: sk.Name, Description: oneLine(sk.Description), Path: path.Join(g.Workspace, api.SkillsDir, sk.Name, sk.Entry),
				})
			}
		}
	}
	g.Text = guidanceText(g, sb)
	return g, nil
}

// guidanceText describes g, and what else a model should know of sb. Text from users appears only
// as a quoted description of a skill.
func guidanceText(g api.Guidance, sb api.Sandbox) string {
	var b strings.Builder
	line := func(format string, args ...any) { fmt.Fprintf(&b, format+"\n", args...) }
	line("You have an isolated Linux sandbox in which your exec tool runs commands. Use it for exact calculations, " +
		"to read and change data, and to run code, instead of estimating. Answer with the result and a short explanation; " +
		"show the script that you used only when you are asked for it.")
	switch {
	case g.WorkspaceReadOnly:
		line("The workspace is mounted at %s and can only be read; write scratch files below /tmp.", g.Workspace)
	case g.WorkspaceKept:
		line("The workspace is mounted at %s. Keep your files there: they stay when the sandbox ends.", g.Workspace)
	default:
		line("The workspace is mounted at %s. Keep your files there; they last as long as the sandbox.", g.Workspace)
	}
	if sb.Cwd != "" && sb.Cwd != g.Workspace {
		line("Commands start in %s.", sb.Cwd)
	}
	if sb.Sudo && sb.Image == api.DefaultImage && sb.User != "" && sb.User != "root" {
		line("Commands run as %s. Use sudo for what needs root.", sb.User)
	}
	for _, m := range sb.Mounts[:min(len(sb.Mounts), maxGuidanceNames)] {
		access := "read and write"
		if m.ReadOnly {
			access = "read only"
		}
		line("There is also %s (%s).", m.Target, access)
	}
	if sb.ReadOnlyRoot {
		line("Everything else but /tmp is read-only.")
	}
	networkText(line, g.Network, sb)
	limitsText(line, g.Limits)
	if len(g.Skills) > 0 {
		line("There are skills for some tasks. Before a task that one of them fits, read its file and do as it says:")
		for _, sk := range g.Skills[:min(len(g.Skills), maxGuidanceNames)] {
			line("- %s (%s): %s", sk.Name, sk.Path, cmp.Or(sk.Description, "no description"))
		}
		if more := len(g.Skills) - maxGuidanceNames; more > 0 {
			line("- and %d more below %s", more, path.Join(g.Workspace, api.SkillsDir))
		}
	}
	return b.String()
}

func networkText(line func(string, ...any), network string, sb api.Sandbox) {
	allow := []string{}
	if sb.Egress != nil {
		allow = sb.Egress.Allow
	}
	switch {
	case network == api.NetworkNone || len(allow) == 0 && sb.Egress != nil && !sb.Egress.Ask:
		line("There is no network: nothing can be downloaded or installed, and no name resolves.")
	case len(allow) > maxGuidanceNames:
		line("The network reaches some hosts only, such as %s. What is refused is refused at once; do not try it again.", strings.Join(allow[:maxGuidanceNames], ", "))
	case len(allow) > 0:
		line("The network reaches these hosts only: %s. What is refused is refused at once; do not try it again.", strings.Join(allow, ", "))
	default:
		line("The network reaches what the operator allows. What is refused is refused at once; do not try it again.")
	}
	for _, e := range sb.Endpoints[:min(len(sb.Endpoints), maxGuidanceNames)] {
		line("The service %s answers at %s.", e.Name, cmp.Or(e.Listen, api.DefaultEndpointListen))
	}
}

func limitsText(line func(string, ...any), l api.Limits) {
	var parts []string
	add := func(on bool, format string, args ...any) {
		if on {
			parts = append(parts, fmt.Sprintf(format, args...))
		}
	}
	add(l.CPUs > 0, "%g CPU", l.CPUs)
	add(l.MemoryBytes > 0, "%d MiB of memory", l.MemoryBytes>>20)
	add(l.Pids > 0, "%d processes", l.Pids)
	add(l.TimeoutMS > 0, "%s for a command unless you ask for another timeout", time.Duration(l.TimeoutMS)*time.Millisecond)
	add(l.LifetimeMS > 0, "%s for the sandbox", time.Duration(l.LifetimeMS)*time.Millisecond)
	if len(parts) > 0 {
		line("Limits: %s.", strings.Join(parts, ", "))
	}
}

// oneLine makes a user's text a single line, so that it cannot imitate lines of Cloche.
func oneLine(s string) string {
	s = strings.Join(strings.Fields(s), " ")
	s, _ = api.TruncateText(s, maxGuidanceText)
	return strings.Join(strings.Fields(s), " ")
}
