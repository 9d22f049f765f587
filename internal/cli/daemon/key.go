package daemon

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/cli/command"
	"github.com/cloche-dev/cloche/internal/terminal"
)

// KeyCommand is "cloche key".
func KeyCommand(a *command.CLI) *cobra.Command {
	c := &cobra.Command{
		Use:   "key",
		Short: "Manage API keys for callers over TCP",
		Long: `An API key belongs to one tenant: its holder sees that tenant's sandboxes and
nothing else, and can do what the key permits. Only the operator creates, lists
and revokes keys.`,
		Example: "  cloche key create --tenant acme > acme.key\n  CLOCHE_TOKEN=$(cat acme.key) cloche --host tcp://127.0.0.1:7070 ls",
		GroupID: command.GroupHost,
		Args:    command.UnknownVerb,
		RunE:    func(c *cobra.Command, _ []string) error { return c.Help() },
	}
	c.AddCommand(keyCreateCommand(a), keyListCommand(a), keyRevokeCommand(a))
	return c
}

func keyCreateCommand(a *command.CLI) *cobra.Command {
	var spec api.KeySpec
	var expires string
	c := &cobra.Command{
		Use:   "create [flags] --tenant TENANT",
		Short: "Create an API key and print it",
		Long: `Create an API key and print it once: the daemon keeps only its hash. Send it as
CLOCHE_TOKEN. Without --verb it permits everything that a tenant can do; without
--profile sandboxes of every profile; without --expires it is valid until it is
revoked. Verbs are those of "cloche events" and the audit log, such as create,
exec or read_file; "observe" is all read-only ones.`,
		Example: "  cloche key create --tenant acme --name ci --expires 720h > ci.key\n  cloche key create --tenant acme --verb observe\n  cloche key create --tenant acme --verb run --profile offline_readonly",
		Args:    command.Exactly(0, "none: the tenant goes with --tenant"),
		RunE: func(c *cobra.Command, _ []string) (err error) {
			if spec.Tenant == "" {
				return api.Invalid("tenant", "it was not said whose key it is to be").WithHint("name a tenant with --tenant; a new one needs nothing else")
			}
			if err := command.CheckText("key", append(append([]string{spec.Tenant, spec.Name}, spec.Verbs...), spec.Profiles...)...); err != nil {
				return err
			}
			if c.Flags().Changed("expires") {
				if spec.ExpiresInMS, err = command.ParseTimeout("--expires", "expires_in_ms", expires); err != nil {
					return err
				}
				if spec.ExpiresInMS == 0 {
					return api.Invalid("expires_in_ms", "--expires 0 would be a key that is never valid").WithHint("leave it out for a key without an end")
				}
			}
			return a.WithDaemon(c, func(ctx context.Context, conn *command.Connection) error { return createKey(ctx, a, conn, spec) })
		},
	}
	c.Flags().StringVar(&spec.Tenant, "tenant", "", "the tenant, a `NAME`")
	c.Flags().StringVar(&spec.Name, "name", "", "a `NAME` that describes it")
	c.Flags().StringArrayVar(&spec.Verbs, "verb", nil, "a `VERB` that it permits (repeatable)")
	c.Flags().StringArrayVar(&spec.Profiles, "profile", nil, "a `PROFILE` of sandboxes that it can create and use (repeatable)")
	c.Flags().StringVar(&expires, "expires", "", "its validity, a `duration` such as 720h")
	return c
}

func createKey(ctx context.Context, a *command.CLI, conn *command.Connection, spec api.KeySpec) error {
	k, err := conn.CreateKey(ctx, spec)
	if err != nil {
		return err
	}
	if a.JSON {
		return a.PrintJSON(k)
	}
	a.Note("key %s of tenant %s; it is shown this once", k.Key.ID, k.Key.Tenant)
	if _, err := fmt.Fprintln(a.Stdio.Out, terminal.Printable(k.Secret)); err != nil {
		return command.OutputError(err)
	}
	return nil
}

func keyListCommand(a *command.CLI) *cobra.Command {
	return &cobra.Command{
		Use:   "ls",
		Short: "List API keys",
		Long: `List API keys, newest first: tenant, permissions and last use. Revoked and
expired keys stay in the list for 30 days.`,
		Example: "  cloche key ls\n  cloche key ls --json",
		Args:    command.Exactly(0, "none"),
		RunE: func(c *cobra.Command, _ []string) error {
			return a.WithDaemon(c, func(ctx context.Context, conn *command.Connection) error {
				list, err := conn.Keys(ctx)
				if err != nil {
					return err
				}
				if a.JSON {
					list.Keys = append([]api.Key{}, list.Keys...)
					return a.PrintJSON(list)
				}
				var rows [][]string
				for _, k := range list.Keys {
					rows = append(rows, keyRow(k, time.Now()))
				}
				return command.WriteTable(a.Stdio.Out, []string{"ID", "TENANT", "NAME", "FOR", "STATE", "LAST USED"}, rows)
			})
		},
	}
}

func keyRow(k api.Key, now time.Time) []string {
	row := []string{k.ID, k.Tenant, k.Name, "everything", "good", "never"}
	if k.Name == "" {
		row[2] = "-"
	}
	var scope []string
	if n := len(k.Verbs); n > 3 {
		scope = append(scope, command.Counted(n, "verb"))
	} else if n > 0 {
		scope = append(scope, strings.Join(k.Verbs, ","))
	}
	if len(k.Profiles) > 0 {
		scope = append(scope, "profile "+strings.Join(k.Profiles, ","))
	}
	if len(scope) > 0 {
		row[3] = strings.Join(scope, "; ")
	}
	switch {
	case k.RevokedAt != nil:
		row[4] = "revoked " + command.FormatAge(now.Sub(*k.RevokedAt)) + " ago"
	case k.ExpiresAt != nil && !now.Before(*k.ExpiresAt):
		row[4] = "expired " + command.FormatAge(now.Sub(*k.ExpiresAt)) + " ago"
	case k.ExpiresAt != nil:
		row[4] = "good for " + command.FormatAge(k.ExpiresAt.Sub(now))
	}
	if k.LastUsedAt != nil {
		row[5] = command.FormatAge(now.Sub(*k.LastUsedAt)) + " ago"
	}
	return row
}

func keyRevokeCommand(a *command.CLI) *cobra.Command {
	return &cobra.Command{
		Use:   "revoke ID...",
		Short: "Revoke API keys",
		Long: `Revoke API keys by their ids, at once. Their requests in progress are cancelled;
the sandboxes of their tenants keep running.`,
		Example: "  cloche key revoke key-4k2mwd7e3x9qv0ha",
		Args:    command.AtLeast(1, "ids of keys"),
		RunE: func(c *cobra.Command, args []string) error {
			return a.WithDaemon(c, func(ctx context.Context, conn *command.Connection) error {
				for _, id := range args {
					k, err := conn.RevokeKey(ctx, id)
					if err == nil && a.JSON {
						err = a.PrintJSON(k)
					}
					if err != nil {
						return err
					}
				}
				return nil
			})
		},
	}
}
