package network

import (
	"net/netip"
	"slices"
	"strings"

	"github.com/spf13/pflag"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/cli/command"
	"github.com/cloche-dev/cloche/internal/terminal"
)

// EgressFlags are the flags on what may leave, as they were typed.
type EgressFlags struct {
	allow, deny, requests []string
	ask                   bool
}

// Register adds the flags.
func (f *EgressFlags) Register(flags *pflag.FlagSet) {
	flags.StringArrayVar(&f.allow, "allow", nil, "allow connections by a `RULE` such as pypi.org, \"*.example.com\", db.example.com:5432 or @npm; several with commas (repeatable)")
	flags.StringArrayVar(&f.deny, "deny", nil, "deny connections by a `RULE`, whatever is allowed (repeatable)")
	flags.StringArrayVar(&f.requests, "allow-request", nil, "limit the requests to a host: `[METHODS ]HOST[/PATHS]` such as \"GET api.example.com/v1/*\" (repeatable)")
	flags.BoolVar(&f.ask, "ask", false, "hold connections that no rule covers until approved with \"cloche egress approve\"")
}

// Egress is what was asked for; nil is nothing.
func (f *EgressFlags) Egress() (*api.Egress, error) {
	if len(f.allow)+len(f.deny)+len(f.requests) == 0 && !f.ask {
		return nil, nil
	}
	e := &api.Egress{Ask: f.ask}
	var err error
	if e.Allow, err = splitRules("--allow", f.allow); err != nil {
		return nil, err
	}
	if e.Deny, err = splitRules("--deny", f.deny); err != nil {
		return nil, err
	}
	for _, text := range f.requests {
		r, err := parseRequestRule(text)
		if err != nil {
			return nil, err
		}
		e.Requests = append(e.Requests, r)
		// To narrow requests to a host is to want it.
		if !slices.Contains(e.Allow, r.Host) {
			e.Allow = append(e.Allow, r.Host)
		}
	}
	return e, nil
}

// splitRules takes lists apart at their commas, but not those between the ranges of
// one rule.
func splitRules(flag string, texts []string) ([]string, error) {
	var out []string
	for _, text := range texts {
		if err := command.CheckText("egress", text); err != nil {
			return nil, err
		}
		first := len(out)
		for part := range strings.SplitSeq(text, ",") {
			part = strings.TrimSpace(part)
			if _, err := netip.ParsePrefix(part); err == nil && len(out) > first && strings.Contains(out[len(out)-1], " at ") {
				out[len(out)-1] += "," + part
				continue
			}
			if part == "" {
				return nil, api.Invalid("egress", "%s %q holds an empty rule", flag, terminal.Clip(text)).WithHint("write a name such as pypi.org, or leave %s out", flag)
			}
			out = append(out, part)
		}
	}
	return out, nil
}

// parseRequestRule reads [METHOD[,METHOD] ]HOST[PATH[,PATH]].
func parseRequestRule(text string) (api.RequestRule, error) {
	var r api.RequestRule
	if err := command.CheckText("egress", text); err != nil {
		return r, err
	}
	methods, rest, both := strings.Cut(strings.TrimSpace(text), " ")
	if !both {
		methods, rest = "", methods
	}
	host, paths, below := strings.Cut(strings.TrimSpace(rest), "/")
	if r.Host = host; host == "" {
		return r, api.Invalid("egress", "--allow-request %q names no host", terminal.Clip(text)).WithHint(`write it as "GET,HEAD api.example.com/v1/*"`)
	}
	if below {
		r.Paths = strings.Split("/"+paths, ",")
	}
	if both {
		r.Methods = strings.Split(strings.ToUpper(methods), ",")
	}
	return r, nil
}

// maxToldRefusals is how many refusals are told after a command; the log has all.
const maxToldRefusals = 5

// TellRefusals says what was not let out while a command failed, and how it would be:
// again is what goes before the rule.
func TellRefusals(a *command.CLI, res *api.Result, again string) {
	if res.OK() {
		return
	}
	for i, r := range res.Refusals {
		if i == maxToldRefusals {
			a.Warn("%s more not let out", command.Counted(len(res.Refusals)-i, "connection"))
			return
		}
		what := command.HostPort(r.Name, r.Port)
		if r.Method != "" {
			what = r.Method + " " + what + r.Path
		}
		if r.Allow == "" {
			a.Warn("not let out: %s: %s (rule %s)", terminal.Clip(what), r.Reason, r.Rule)
			continue
		}
		a.Warn("not let out: %s: %s (rule %s); to allow it: %s %s", terminal.Clip(what), r.Reason, r.Rule, again, command.ShellWord(r.Allow))
	}
}
