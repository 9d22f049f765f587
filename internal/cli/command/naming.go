package command

import (
	"context"
	"strings"

	"github.com/spf13/pflag"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/terminal"
)

// NamingFlags are the flags that select a sandbox by identity, as they were typed.
type NamingFlags struct {
	template string
	identity []string
}

// Register adds the flags.
func (f *NamingFlags) Register(flags *pflag.FlagSet) {
	flags.StringVar(&f.template, "name-template", "", "the sandbox's name with variables, a `TEMPLATE` such as "+api.DefaultNameTemplate+" (default the operator's, or that one)")
	flags.StringArrayVar(&f.identity, "identity", nil, "the identity for the name template, `NAME=VALUE`: launcher_type, launcher_id, sender_id, query_id or your own variable (repeatable)")
}

// Naming is what the flags say.
func (f *NamingFlags) Naming() (api.Naming, error) {
	n := api.Naming{NameTemplate: f.template}
	if err := CheckText("name_template", f.template); err != nil || len(f.identity) == 0 {
		return n, err
	}
	n.Identity = &api.Identity{}
	for _, pair := range f.identity {
		name, value, ok := strings.Cut(pair, "=")
		if !ok || name == "" || name == "global" {
			return n, api.Invalid("identity", "--identity %q is not NAME=VALUE", terminal.Clip(pair)).
				WithHint("write --identity launcher_id=42; {global} needs no value")
		}
		if err := CheckText("identity", name, value); err != nil {
			return n, err
		}
		switch name {
		case "launcher_type":
			n.Identity.LauncherType = value
		case "launcher_id":
			n.Identity.LauncherID = value
		case "sender_id":
			n.Identity.SenderID = value
		case "query_id":
			n.Identity.QueryID = value
		default:
			if n.Identity.Variables == nil {
				n.Identity.Variables = map[string]string{}
			}
			n.Identity.Variables[name] = value
		}
	}
	return n, nil
}

// Named is what a sandbox is called in calls that have no identity: those that come
// after a start.
func (c *Connection) Named(ctx context.Context, ref string, n api.Naming) (string, error) {
	if ref != api.RefByNaming || n.NameTemplate == "" && n.Identity == nil {
		return ref, nil
	}
	r, err := c.ResolveName(ctx, n)
	return r.Name, err
}
