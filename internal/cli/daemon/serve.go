package daemon

import (
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/cli/command"
)

// ServeCommand is "cloche serve".
func ServeCommand(a *command.CLI) *cobra.Command {
	var o command.ServeOptions
	c := &cobra.Command{
		Use:   "serve",
		Short: "Run the daemon",
		Long: `Run the daemon in the foreground until it gets INT or TERM. Sandboxes keep
running when it ends, and the next daemon with the same home finds them.

It listens on a socket in its home that only its own user can open, and at the
addresses of --listen. A tcp:// address needs the token in CLOCHE_TOKEN from
every caller, accepts the machine's own names and those of --host-name, and uses
TLS with --tls-cert and --tls-key. GET /healthz and /readyz need no token.
--config names the policy file. With --json the log is JSON lines.

Settings without a flag come from the environment: CLOCHE__LISTEN,
CLOCHE__LOG__LEVEL and so on; then from settings.yaml in the home, or the file
of --settings. "cloche config show" prints each setting with its source.`,
		Example: "  cloche serve\n  cloche serve --home /srv/cloche --config /etc/cloche.yaml\n  CLOCHE_TOKEN=$(cat token) cloche serve --listen tcp://127.0.0.1:7070\n  cloche serve --listen tcp://:7070 --host-name box.example.org --tls-cert cert.pem --tls-key key.pem",
		GroupID: command.GroupHost,
		Args:    command.Exactly(0, "none"),
		RunE: func(c *cobra.Command, _ []string) error {
			if a.Env.Serve == nil {
				return api.Errorf(api.CodeUnsupported, "the daemon runs on Linux and macOS only").WithHint("start it there, and name it here with --host or CLOCHE_HOST")
			}
			ctx, cancel := command.Interruptible(c.Context())
			defer cancel()
			o.Home, o.JSON = a.Home, a.JSON
			return a.Env.Serve(ctx, o)
		},
	}
	registerServe(&o, c.Flags())
	return c
}

func registerServe(o *command.ServeOptions, flags *pflag.FlagSet) {
	flags.StringArrayVar(&o.Listen, "listen", nil, "also listen here, `unix:///PATH | tcp://HOST:PORT` (repeatable; the socket in the home is always there)")
	flags.StringArrayVar(&o.E2B, "e2b", nil, "serve clients of E2B at this `address`, such as 127.0.0.1:3000; see \"cloche e2b env\"")
	flags.StringArrayVar(&o.HostNames, "host-name", nil, "accept calls over TCP to this host `name`, such as box.example.org or *.example.org (repeatable; addresses, localhost and the machine's own names always are)")
	flags.StringArrayVar(&o.Origins, "origin", nil, "accept calls from browser pages of this `origin`, such as https://tools.example.org (repeatable)")
	flags.StringVar(&o.TLSCert, "tls-cert", "", "use TLS at tcp:// addresses, with the certificates in this `file`")
	flags.StringVar(&o.TLSKey, "tls-key", "", "the key of --tls-cert, a `file` of mode 0600")
	flags.StringVar(&o.Config, "config", "", "the policy, a YAML `file` (default: policy.yaml in the home)")
	flags.StringVar(&o.Settings, "settings", "", "the daemon's own settings, a YAML `file` (default: settings.yaml in the home)")
}
