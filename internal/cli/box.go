package cli

import (
	"github.com/spf13/cobra"

	"github.com/cloche-dev/cloche/api"
)

// usualBoxPort is the one that LangBot looks for.
const usualBoxPort = 5410

func (a *app) boxCommand() *cobra.Command {
	var o BoxOptions
	var stdio bool
	c := &cobra.Command{
		Use:   "box",
		Short: "Run the daemon as LangBot's box runtime",
		Long: `Run the daemon in the foreground with an API server for LangBot, in the place of
"lbp box": its control connection, its relays and its probes. LangBot is told
of it by box.runtime.endpoint, or starts it itself and speaks over stdio.

Sandboxes of persistent sessions live on when it ends, and the next one with the
same home finds them again. The sandboxes are those of any daemon: "cloche ls" in
the same home lists them.

Without --host it listens at every address where LANGBOT_BOX_CONTROL_TOKEN is set.
Where it is not, it listens for this machine alone, and serves only the user that
it runs as, and root. What a client says of directories and engines narrows what
LANGBOT_BOX_CONFIG, BOX__LOCAL__* and BOX_BACKEND grant.`,
		Example: "  cloche box\n  LANGBOT_BOX_CONTROL_TOKEN=$(cat token) cloche box --host 0.0.0.0\n  cloche box -s --ws-control-port 5411",
		GroupID: groupHost,
		Args:    exactly(0, "none"),
		RunE: func(c *cobra.Command, _ []string) error {
			if a.env.Box == nil {
				return api.Errorf(api.CodeUnsupported, "the daemon runs on Linux and macOS only").WithHint("start it there")
			}
			if o.Port < 0 || o.Port > 65535 {
				return api.Invalid("ws-control-port", "%d is no port", o.Port).WithHint("0 to 65535; 0 takes one that is free")
			}
			ctx, cancel := interruptible(c.Context())
			defer cancel()
			o.Home, o.JSON = a.home, a.json
			if stdio {
				o.In, o.Out = a.stdio.In, a.stdio.Out
			}
			return a.env.Box(ctx, o)
		},
	}
	flags := c.Flags()
	flags.StringVar(&o.Address, "host", "", "listen at this `address` of the machine")
	flags.BoolVarP(&stdio, "stdio-control", "s", false, "have the control connection on stdin and stdout")
	flags.IntVar(&o.Port, "ws-control-port", usualBoxPort, "listen at this `port`")
	flags.StringVar(&o.Config, "config", "", "the operator's rules, a YAML `file` (default: policy.yaml in the home)")
	flags.StringVar(&o.Settings, "settings", "", "the daemon's own settings, a YAML `file` (default: settings.yaml in the home)")
	return c
}
