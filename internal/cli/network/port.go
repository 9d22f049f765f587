package network

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/cli/command"
	"github.com/cloche-dev/cloche/internal/terminal"
)

// PortCommand is "cloche port".
func PortCommand(a *command.CLI) *cobra.Command {
	c := &cobra.Command{
		Use:   "port",
		Short: "Open ports of sandboxes as URLs",
		Long: `Open ports of sandboxes as URLs. Each open port has an origin of its own on a
listener of the daemon, such as http://8000-ID.localhost:PORT/, for browsers and
other HTTP clients. For other protocols use "cloche port-forward".`,
		Example: "  cloche port open build 8000\n  cloche port ls build\n  cloche port close build 8000",
		GroupID: command.GroupProcess,
		Args:    unknownPortVerb,
		RunE:    func(c *cobra.Command, _ []string) error { return c.Help() },
	}
	c.AddCommand(portOpenCommand(a), portListCommand(a), portCloseCommand(a))
	return c
}

// unknownPortVerb is UnknownVerb, which expects that the word is the name of a sandbox: "port" of
// Docker lists the ports of a container.
func unknownPortVerb(c *cobra.Command, args []string) error {
	err := command.UnknownVerb(c, args)
	if e, ok := errors.AsType[*api.Error](err); ok && !strings.HasPrefix(e.Hint, "did you mean") {
		return e.WithHint("`cloche port ls %s` lists the open ports of a sandbox", terminal.Clip(args[0]))
	}
	return err
}

// ParsePort reads a port inside a sandbox.
func ParsePort(text string) (int, error) {
	n, err := strconv.ParseUint(text, 10, 16)
	if err != nil || n == 0 {
		return 0, api.Invalid("port", "%q is no port of a sandbox", terminal.Clip(text)).
			WithHint("give a number from 1 to 65535; `cloche port-forward SANDBOX 8080:80` makes a port available at a port of this machine")
	}
	return int(n), nil
}

func portOpenCommand(a *command.CLI) *cobra.Command {
	var spec api.PortSpec
	var ttl string
	c := &cobra.Command{
		Use:   "open [flags] SANDBOX PORT",
		Short: "Open a port as a URL",
		Long: `Open a TCP port of a sandbox as a URL and print the URL. The program in the
sandbox can start later. The daemon connects to 127.0.0.1 and then to ::1.

The URL has a token. A browser gets a cookie for it and loads the page without
the token in the address bar; other clients send it in the header
` + api.PortTokenHeader + `. The token is printed only once: a port that is opened
again gets another one, and the earlier one ends. With --public requests need no
token, if the policy allows it.

The port is open until it is closed, its time is over or the sandbox ends, also
when the daemon is started again.`,
		Example:           "  cloche port open build 8000\n  cloche port open --ttl 1h build 5173\n  curl -H \"X-Cloche-Port-Token: $TOKEN\" http://8000-ID.localhost:PORT/",
		Args:              command.Exactly(2, "SANDBOX and PORT"),
		ValidArgsFunction: a.CompleteSandboxes,
		RunE: func(c *cobra.Command, args []string) (err error) {
			if spec.Port, err = ParsePort(args[1]); err != nil {
				return err
			}
			if c.Flags().Changed("ttl") {
				if spec.TTLMS, err = command.ParseTimeout("--ttl", "ttl_ms", ttl); err != nil {
					return err
				}
			}
			return a.WithDaemon(c, func(ctx context.Context, conn *command.Connection) error {
				opened, err := conn.OpenPort(ctx, args[0], spec)
				if err != nil {
					return err
				}
				if a.JSON {
					return a.PrintJSON(opened)
				}
				if _, err := fmt.Fprintln(a.Stdio.Out, terminal.Printable(opened.AccessURL)); err != nil {
					return command.OutputError(err)
				}
				return nil
			})
		},
	}
	c.Flags().BoolVar(&spec.Public, "public", false, "let every client that can connect use the URL, without a token")
	c.Flags().BoolVar(&spec.KeepHost, "keep-host", false, "pass the Host and Origin of requests on; otherwise the program gets localhost:PORT")
	c.Flags().StringVar(&ttl, "ttl", "", "close the port after this `duration` (default: with the sandbox)")
	return c
}

func portListCommand(a *command.CLI) *cobra.Command {
	return &cobra.Command{
		Use:               "ls SANDBOX",
		Short:             "List the open ports of a sandbox",
		Long:              "List the open ports of a sandbox, with their URLs without tokens.",
		Example:           "  cloche port ls build\n  cloche port ls --json build",
		Args:              command.Exactly(1, "SANDBOX"),
		ValidArgsFunction: a.CompleteSandboxes,
		RunE: func(c *cobra.Command, args []string) error {
			return a.WithDaemon(c, func(ctx context.Context, conn *command.Connection) error {
				list, err := conn.OpenPorts(ctx, args[0])
				if err != nil {
					return err
				}
				if a.JSON {
					list.Ports = append([]api.OpenPort{}, list.Ports...)
					return a.PrintJSON(list)
				}
				var rows [][]string
				for _, p := range list.Ports {
					access, expires := "token", "-"
					if p.Public {
						access = "public"
					}
					if p.ExpiresAt != nil {
						expires = p.ExpiresAt.Local().Format(time.RFC3339)
					}
					rows = append(rows, []string{strconv.Itoa(p.Port), access, expires, p.URL})
				}
				return command.WriteTable(a.Stdio.Out, []string{"PORT", "ACCESS", "EXPIRES", "URL"}, rows)
			})
		},
	}
}

func portCloseCommand(a *command.CLI) *cobra.Command {
	return &cobra.Command{
		Use:               "close SANDBOX PORT",
		Short:             "Close an open port",
		Long:              "Close an open port. Its URL and its token end, and so do the connections to it.",
		Example:           "  cloche port close build 8000",
		Args:              command.Exactly(2, "SANDBOX and PORT"),
		ValidArgsFunction: a.CompleteSandboxes,
		RunE: func(c *cobra.Command, args []string) error {
			port, err := ParsePort(args[1])
			if err != nil {
				return err
			}
			return a.WithDaemon(c, func(ctx context.Context, conn *command.Connection) error {
				return conn.ClosePort(ctx, args[0], port)
			})
		},
	}
}
