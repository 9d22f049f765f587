package daemon

import (
	"github.com/spf13/cobra"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/cli/command"
)

// usualBoxPort is the one that LangBot looks for.
const usualBoxPort = 5410

// BoxCommand is "cloche box".
func BoxCommand(a *command.CLI) *cobra.Command {
	var o command.BoxOptions
	var stdio bool
	c := &cobra.Command{
		Use:   "box",
		Short: "Run the daemon as LangBot's box runtime",
		Long: `Run the daemon in the foreground with LangBot's API, as a replacement for "lbp
box": its control connection, its relays and its probes. Set
box.runtime.endpoint in LangBot, or let LangBot start it over stdio.

Sandboxes of persistent sessions keep running when it ends, and the next daemon
with the same home finds them. They are ordinary sandboxes: "cloche ls" in the
same home lists them.

With LANGBOT_BOX_CONTROL_TOKEN and without --host it listens at every address.
Without the token it listens for this machine only, and serves only its own user
and root. A client can only narrow the directories and engines that
LANGBOT_BOX_CONFIG, BOX__LOCAL__* and BOX_BACKEND grant.`,
		Example: "  cloche box\n  LANGBOT_BOX_CONTROL_TOKEN=$(cat token) cloche box --host 0.0.0.0\n  cloche box -s --ws-control-port 5411",
		GroupID: command.GroupHost,
		Args:    command.Exactly(0, "none"),
		RunE: func(c *cobra.Command, _ []string) error {
			if a.Env.Box == nil {
				return api.Errorf(api.CodeUnsupported, "the daemon runs on Linux and macOS only").WithHint("start it there")
			}
			if o.Port < 0 || o.Port > 65535 {
				return api.Invalid("ws-control-port", "%d is no port", o.Port).WithHint("0 to 65535; 0 takes one that is free")
			}
			ctx, cancel := command.Interruptible(c.Context())
			defer cancel()
			o.Home, o.JSON = a.Home, a.JSON
			if stdio {
				o.In, o.Out = a.Stdio.In, a.Stdio.Out
			}
			return a.Env.Box(ctx, o)
		},
	}
	flags := c.Flags()
	flags.StringVar(&o.Address, "host", "", "listen at this `address` of the machine")
	flags.BoolVarP(&stdio, "stdio-control", "s", false, "use stdin and stdout as the control connection")
	flags.IntVar(&o.Port, "ws-control-port", usualBoxPort, "listen at this `port`")
	flags.StringVar(&o.Config, "config", "", "the policy, a YAML `file` (default: policy.yaml in the home)")
	flags.StringVar(&o.Settings, "settings", "", "the daemon's own settings, a YAML `file` (default: settings.yaml in the home)")
	return c
}
