package engine

import (
	"fmt"
	"path"
	"slices"
	"strings"

	"github.com/cloche-dev/cloche/api"
)

// MaxConfig limits an agent's configuration, in bytes. It must fit into a pipe.
const MaxConfig = 1 << 20

// SafeName reports whether s is safe as a file name or a part of one.
func SafeName(s string) bool {
	return s != "" && s != "." && s != ".." && len(s) <= 200 && !strings.ContainsAny(s, "/\x00\n")
}

// Validate returns what is wrong with a plan on any engine. It examines only the plan.
func (p Plan) Validate() error {
	switch {
	case !SafeName(p.ID) || !SafeName(p.Owner):
		return api.Errorf(api.CodeInternal, "plan: id %q or owner %q is not safe as a file name", p.ID, p.Owner)
	case len(p.Agent.Argv) == 0 || !path.IsAbs(p.Agent.Target):
		return api.Errorf(api.CodeInternal, "plan: no agent")
	case len(p.Agent.Config) > MaxConfig:
		return api.Errorf(api.CodeInternal, "plan: the agent's configuration is over %d bytes", MaxConfig)
	case p.Agent.Port <= 0 || p.Agent.Port > 65535:
		return api.Errorf(api.CodeInternal, "plan: port %d of the agent is out of range", p.Agent.Port)
	case p.Link != nil && !p.Link.whole():
		return api.Errorf(api.CodeInternal, "plan: the link is not whole")
	case p.Root.ReadOnly && p.Root.Upper != "":
		return api.Errorf(api.CodeInternal, "plan: a read-only root begins with no layer")
	}
	sockets := 0
	for _, m := range p.Mounts {
		sockets += len(m.Sockets)
	}
	if sockets > MaxSockets {
		return api.Errorf(api.CodeInternal, "plan: %d sockets to cover are over %d", sockets, MaxSockets)
	}
	for _, t := range p.Tmpfs {
		// A memory filesystem without a size could use all memory of the machine.
		if t.SizeBytes <= 0 {
			return api.Errorf(api.CodeInternal, "plan: tmpfs %s has no size", t.Target)
		}
	}
	return nil
}

func (l *Link) whole() bool {
	return l.Guest != nil && l.Far != nil && l.Address.Addr().Is4() && l.Gateway.Is4() &&
		len(l.MAC) == 6 && len(l.GatewayMAC) == 6 && l.MTU > 0
}

// RefuseSaved returns the error of an engine without Abilities.Layer and Abilities.Suspend for a plan that continues from what
// such an engine has saved, and nil for another plan.
func (p Plan) RefuseSaved(engine string) error {
	switch {
	case p.Root.Upper != "":
		return api.Errorf(api.CodeUnsupported, "the %s engine cannot give a sandbox the root of a snapshot", engine).
			WithHint("leave it out, or use engine gvisor")
	case p.Memory != nil:
		return api.Errorf(api.CodeUnsupported, "the %s engine cannot continue a sandbox from saved memory", engine).
			WithHint("use engine gvisor")
	}
	return nil
}

// RefusePinned is the error of an engine without Abilities.Pinned for a mount that is Pinned. It names a
// rule, which policy may have created for a private file in the mount.
func (p Plan) RefusePinned(engine string, m Mount) error {
	var such string
	base := api.AccessWrite
	if m.ReadOnly {
		base = api.AccessRead
	}
	if i := slices.IndexFunc(p.Rules, func(r PathRule) bool { return r.Target == m.Target && r.Access != base }); i >= 0 {
		such = fmt.Sprintf(", such as the one for %.500q", path.Join(m.Target, p.Rules[i].Path))
	}
	return api.Errorf(api.CodeUnsupported, "the %s engine cannot enforce rules on paths in the mount at %s%s: the host can put another file where a rule covers one", engine, m.Target, such).
		WithHint("leave the rules out and mount a directory without private files, or use engine gvisor")
}
