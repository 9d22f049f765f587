package daemon

import (
	"encoding/hex"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/cli/command"
)

// anyKey is the API key for a daemon of the same user on the same machine, which knows its user by the
// connection. It has the form that older SDKs check.
const anyKey = "e2b_0000000000000000000000000000000000000000"

// E2BCommand is "cloche e2b".
func E2BCommand(a *command.CLI) *cobra.Command {
	c := &cobra.Command{
		Use:   "e2b",
		Short: "Use the daemon with E2B's SDKs",
		Long: `Use the daemon with E2B's own SDKs, unchanged: three variables of the environment
point them to it. The daemon serves them at its TCP address ("cloche serve
--listen tcp://ADDRESS"), and at an address of their own with "cloche serve
--e2b ADDRESS" or e2b.listen in settings.yaml.`,
		Example: "  cloche serve --e2b 127.0.0.1:3000\n  eval \"$(cloche e2b env)\"",
		GroupID: command.GroupHost,
		Args:    command.UnknownVerb,
		RunE:    func(c *cobra.Command, _ []string) error { return c.Help() },
	}
	c.AddCommand(e2bEnvCommand(a))
	return c
}

// E2BEnv is the JSON result of "e2b env".
type E2BEnv struct {
	APIURL     string `json:"E2B_API_URL"`
	SandboxURL string `json:"E2B_SANDBOX_URL"`
	APIKey     string `json:"E2B_API_KEY"`
}

// e2bKey is a key in the form of E2B's keys, which its older clients require. Package e2bapi accepts it.
func e2bKey(key string) string { return "e2b_" + hex.EncodeToString([]byte(key)) }

func e2bEnvCommand(a *command.CLI) *cobra.Command {
	return &cobra.Command{
		Use:   "env",
		Short: "Print the variables that E2B's SDKs need",
		Long: `Print the variables of the environment that point E2B's SDKs to this daemon, as
export lines for a shell. The daemon must serve clients of E2B: start it with
"cloche serve --e2b 127.0.0.1:3000", or set e2b.listen in settings.yaml. A daemon
with a TCP address serves them there too.

E2B_API_KEY is the key in CLOCHE_TOKEN if that is set, in the form of E2B's
keys; "cloche key create" makes one. Without it, any key works for the daemon's
own user at an address of --e2b on the daemon's own machine.`,
		Example: "  eval \"$(cloche e2b env)\"\n  cloche e2b env --json",
		Args:    command.Exactly(0, "none"),
		RunE: func(c *cobra.Command, _ []string) error {
			conn, err := a.Daemon()
			if err != nil {
				return err
			}
			defer conn.Close()
			info, err := conn.Info(c.Context())
			if err != nil {
				return err
			}
			if info.E2BURL == "" {
				return api.Errorf(api.CodeUnavailable, "the daemon does not serve clients of E2B").
					WithHint(`start it with "cloche serve --e2b 127.0.0.1:3000" or with a TCP address, or set e2b.listen in settings.yaml`)
			}
			v := E2BEnv{APIURL: info.E2BURL, SandboxURL: info.E2BURL, APIKey: anyKey}
			if key, ok := a.Env.Getenv("CLOCHE_TOKEN"); ok && key != "" {
				v.APIKey = e2bKey(key)
			} else if info.E2BNeedsKey {
				return api.Errorf(api.CodeUnauthenticated, "clients of E2B need a key at %s", info.E2BURL).
					WithHint(`set CLOCHE_TOKEN to a key of "cloche key create", or start the daemon with "--e2b 127.0.0.1:3000", where its own user needs none`)
			}
			if a.JSON {
				return a.PrintJSON(v)
			}
			for _, line := range [][2]string{{"E2B_API_URL", v.APIURL}, {"E2B_SANDBOX_URL", v.SandboxURL}, {"E2B_API_KEY", v.APIKey}} {
				fmt.Fprintf(a.Stdio.Out, "export %s='%s'\n", line[0], strings.ReplaceAll(line[1], "'", `'\''`))
			}
			return nil
		},
	}
}
