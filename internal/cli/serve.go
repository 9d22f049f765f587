package cli

import (
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/cloche-dev/cloche"
)

func (a *app) serveCommand() *cobra.Command {
	var o ServeOptions
	c := &cobra.Command{
		Use:   "serve",
		Short: "Run the daemon",
		Long: `Run the daemon in the foreground until it gets INT or TERM. Sandboxes live on
when it ends, and the next one with the same home finds them again.

Without --listen it listens on a socket in its home that only its own user can
open. A tcp:// address asks every caller for the token in CLOCHE_TOKEN. --config
names a file with the operator's rules. With --json the log is JSON lines.

What no flag says, the environment may: CLOCHE__LISTEN, CLOCHE__LOG__LEVEL and so
on; then settings.yaml in the home, or the file that --settings names. "cloche
config show" says what holds, and why.`,
		Example: "  cloche serve\n  cloche serve --home /srv/cloche --config /etc/cloche.yaml\n  CLOCHE_TOKEN=$(cat token) cloche serve --listen tcp://127.0.0.1:7070",
		GroupID: groupHost,
		Args:    exactly(0, "none"),
		RunE: func(c *cobra.Command, _ []string) error {
			if a.env.Serve == nil {
				return cloche.Errorf(cloche.CodeUnsupported, "the daemon runs on Linux and macOS only").WithHint("start it there, and name it here with --host or CLOCHE_HOST")
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
	flags.StringArrayVar(&o.Listen, "listen", nil, "listen here, `unix:///PATH | tcp://HOST:PORT` (repeatable; default: a socket in the home)")
	flags.StringVar(&o.Config, "config", "", "the operator's rules, a YAML `file` (default: policy.yaml in the home)")
	flags.StringVar(&o.Settings, "settings", "", "the daemon's own settings, a YAML `file` (default: settings.yaml in the home)")
}
