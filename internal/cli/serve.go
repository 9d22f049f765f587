package cli

import (
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/cloche-dev/cloche/api"
)

func (a *app) serveCommand() *cobra.Command {
	var o ServeOptions
	c := &cobra.Command{
		Use:   "serve",
		Short: "Run the daemon",
		Long: `Run the daemon in the foreground until it gets INT or TERM. Sandboxes live on
when it ends, and the next one with the same home finds them again.

It listens on a socket in its home that only its own user can open, and where
--listen says. A tcp:// address asks every caller for the token in CLOCHE_TOKEN,
takes calls by names that are its own or that --host-name adds, and speaks TLS
with --tls-cert and --tls-key. GET /healthz and /readyz ask for no token. --config
names a file with the operator's rules. With --json the log is JSON lines.

What no flag says, the environment may: CLOCHE__LISTEN, CLOCHE__LOG__LEVEL and so
on; then settings.yaml in the home, or the file that --settings names. "cloche
config show" says what holds, and why.`,
		Example: "  cloche serve\n  cloche serve --home /srv/cloche --config /etc/cloche.yaml\n  CLOCHE_TOKEN=$(cat token) cloche serve --listen tcp://127.0.0.1:7070\n  cloche serve --listen tcp://:7070 --host-name box.example.org --tls-cert cert.pem --tls-key key.pem",
		GroupID: groupHost,
		Args:    exactly(0, "none"),
		RunE: func(c *cobra.Command, _ []string) error {
			if a.env.Serve == nil {
				return api.Errorf(api.CodeUnsupported, "the daemon runs on Linux and macOS only").WithHint("start it there, and name it here with --host or CLOCHE_HOST")
			}
			ctx, cancel := interruptible(c.Context())
			defer cancel()
			o.Home, o.JSON = a.home, a.json
			return a.env.Serve(ctx, o)
		},
	}
	o.register(c.Flags())
	return c
}

func (o *ServeOptions) register(flags *pflag.FlagSet) {
	flags.StringArrayVar(&o.Listen, "listen", nil, "listen here too, `unix:///PATH | tcp://HOST:PORT` (repeatable; the socket in the home is always there)")
	flags.StringArrayVar(&o.HostNames, "host-name", nil, "take calls over TCP by this `name`, such as box.example.org or *.example.org (repeatable; addresses, localhost and the machine's own names always are)")
	flags.StringArrayVar(&o.Origins, "origin", nil, "take calls of browser pages of this `origin`, such as https://tools.example.org (repeatable)")
	flags.StringVar(&o.TLSCert, "tls-cert", "", "speak TLS at tcp:// addresses, with the certificates in this `file`")
	flags.StringVar(&o.TLSKey, "tls-key", "", "the key of --tls-cert, a `file` of mode 0600")
	flags.StringVar(&o.Config, "config", "", "the operator's rules, a YAML `file` (default: policy.yaml in the home)")
	flags.StringVar(&o.Settings, "settings", "", "the daemon's own settings, a YAML `file` (default: settings.yaml in the home)")
}
