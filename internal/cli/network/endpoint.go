package network

import (
	"cmp"
	"context"
	"fmt"
	"net"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/cli/command"
	"github.com/cloche-dev/cloche/internal/terminal"
)

const EndpointUsage = "a service of the daemon's host at an address inside, `NAME=TARGET[@LISTEN][,PRESET...]`, such as model=http://127.0.0.1:8080@127.0.0.1:13131,openai, or with a path such as /run/model.sock as LISTEN; record=NAME after it records the exchanges, and the target replay:NAME replays them (repeatable)"

// parseEndpoint reads NAME=TARGET[@[ADDRESS:]PORT][,PRESET...].
func parseEndpoint(text string) (api.Endpoint, error) {
	bad := func(why string) (api.Endpoint, error) {
		return api.Endpoint{}, api.Invalid("endpoints", "endpoint %q %s", terminal.Clip(text), why).
			WithHint("write NAME=TARGET[@LISTEN][,PRESET...], such as model=http://127.0.0.1:8080@127.0.0.1:13131,openai")
	}
	if err := command.CheckText("endpoints", text); err != nil {
		return api.Endpoint{}, err
	}
	name, rest, ok := strings.Cut(text, "=")
	if !ok {
		return bad("has no target")
	}
	if !api.ValidEndpointName(name) {
		return bad("has no name of a-z, 0-9 and '-' before the '='")
	}
	target, presets, _ := strings.Cut(rest, ",")
	e := api.Endpoint{Name: name, Target: target}
	// A target may hold one too; what is after the last is an address with a port.
	if i := strings.LastIndexByte(target, '@'); i >= 0 {
		e.Target, e.Listen = target[:i], target[i+1:]
		if e.Listen == "auto" || e.Listen == api.EndpointListenAuto {
			e.Listen = api.EndpointListenAuto
			return withOptions(e, presets, bad)
		}
		if strings.HasPrefix(e.Listen, "/") {
			e.Listen = api.EndpointListenSocket + e.Listen
		}
		if strings.HasPrefix(e.Listen, "unix:") {
			return withOptions(e, presets, bad)
		}
		host, port, err := net.SplitHostPort(e.Listen)
		if err != nil {
			host, port = "", e.Listen
		}
		if _, err := strconv.ParseUint(port, 10, 16); err != nil {
			return bad("has no port after the '@'")
		}
		e.Listen = net.JoinHostPort(cmp.Or(host, "127.0.0.1"), port)
	}
	if e.Target == "" {
		return bad("has no target")
	}
	return withOptions(e, presets, bad)
}

// withOptions reads what comes after the target, between commas.
func withOptions(e api.Endpoint, presets string, bad func(string) (api.Endpoint, error)) (api.Endpoint, error) {
	if presets == "" {
		return e, nil
	}
	for option := range strings.SplitSeq(presets, ",") {
		if wrong := endpointOption(&e, option); wrong != "" {
			return bad(wrong)
		}
	}
	return e, nil
}

// endpointOption reads what comes after a comma, and says what is wrong with it.
func endpointOption(e *api.Endpoint, option string) string {
	key, value, said := strings.Cut(option, "=")
	switch {
	case key == "record" && said:
		e.Record = value
		return ""
	case key == "match" && said, option == "pace":
		if e.Replay == nil {
			e.Replay = &api.EndpointReplay{}
		}
		if said {
			e.Replay.Match = value
		} else {
			e.Replay.Pace = true
		}
		return ""
	case key == "user" && said:
		e.ListenUser = value
		return ""
	case option == "probe":
		e.Probe = true
		return ""
	case key == "body-filter" && said, option == "once":
		if e.HTTP == nil {
			e.HTTP = &api.EndpointHTTP{}
		}
		if e.HTTP.Once = e.HTTP.Once || !said; said {
			e.HTTP.BodyFilter = value
		}
		return ""
	case key == "audit" && said:
		e.Audit = &api.EndpointAudit{Capture: value}
		return ""
	case said:
		return "has an option " + strconv.Quote(terminal.Clip(key)) + ", which is not one of user, record, match, pace, probe, once, audit and body-filter"
	}
	e.Presets = append(e.Presets, option)
	return ""
}

// ParseEndpoints parses the values of --endpoint.
func ParseEndpoints(texts []string) ([]api.Endpoint, error) {
	var out []api.Endpoint
	for _, text := range texts {
		e, err := parseEndpoint(text)
		if err != nil {
			return nil, err
		}
		out = append(out, e)
	}
	return out, nil
}

// EndpointCommand is "cloche endpoint".
func EndpointCommand(a *command.CLI) *cobra.Command {
	c := &cobra.Command{
		Use:   "endpoint",
		Short: "Manage services of the host inside a sandbox",
		Long: `An endpoint is a service of the daemon's host at an address of the sandbox's
loopback: a model, tools, a database. A sandbox without a network reaches its
endpoints and nothing else. The policy file lists the permitted targets in
"endpoints".`,
		Example: "  cloche endpoint add build model=http://127.0.0.1:8080@127.0.0.1:13131,openai\n  cloche endpoint ls build\n  cloche endpoint rm build model",
		GroupID: command.GroupProcess,
		Args:    command.UnknownVerb,
		RunE:    func(c *cobra.Command, _ []string) error { return c.Help() },
	}
	c.AddCommand(endpointListCommand(a), endpointAddCommand(a), endpointRemoveCommand(a), endpointServeCommand(a))
	return c
}

func endpointListCommand(a *command.CLI) *cobra.Command {
	return &cobra.Command{
		Use:               "ls SANDBOX",
		Short:             "List the endpoints of a sandbox",
		Long:              "List the endpoints of a sandbox, with their states and traffic.",
		Example:           "  cloche endpoint ls build\n  cloche endpoint ls --json build",
		Args:              command.Exactly(1, "SANDBOX"),
		ValidArgsFunction: a.CompleteSandboxes,
		RunE: func(c *cobra.Command, args []string) error {
			return a.WithDaemon(c, func(ctx context.Context, conn *command.Connection) error {
				list, err := conn.Endpoints(ctx, args[0])
				if err != nil {
					return err
				}
				if a.JSON {
					list.Endpoints = append([]api.EndpointStatus{}, list.Endpoints...)
					return a.PrintJSON(list)
				}
				var rows [][]string
				for _, e := range list.Endpoints {
					rows = append(rows, endpointRow(e))
				}
				return command.WriteTable(a.Stdio.Out, []string{"NAME", "STATE", "INSIDE", "TARGET", "REQUESTS", "ACTIVE", "REASON"}, rows)
			})
		},
	}
}

func endpointRow(e api.EndpointStatus) []string {
	return []string{
		e.Endpoint.Name, string(e.State), e.SandboxView.URL, e.HostView.URL, strconv.FormatInt(e.Counters.Requests, 10),
		strconv.FormatInt(e.Counters.Active, 10), cmp.Or(e.Reason, "-"),
	}
}

func endpointAddCommand(a *command.CLI) *cobra.Command {
	var replace bool
	var f endpointFlags
	c := &cobra.Command{
		Use:   "add [flags] SANDBOX NAME=TARGET[@LISTEN][,PRESET...]",
		Short: "Add an endpoint to a running sandbox",
		Long: `Add an endpoint to a running sandbox.

TARGET is one of:

- http://HOST[:PORT][/BASE] or https: requests reach paths below BASE
- tcp://HOST:PORT: bytes
- unix:///SOCKET or unix+tcp:///SOCKET: a socket of the host
- client or client+tcp: served by "cloche endpoint serve"
- replay:NAME: answered from a recording

LISTEN is 127.0.0.1:PORT inside (default ` + api.DefaultEndpointListen + `); "auto" for a free
port, which is printed; or the path of a socket inside, such as /run/model.sock,
which every user inside can use, or with user=NAME only that user.

PRESET is one of:

- openai, anthropic: new processes get the variables of this SDK
- record=NAME: record the exchanges
- match=order: a recording answers in order, not by the content of the request
- pace: a recording answers at the recorded speed
- body-filter=FILTER: as --body-filter
- once: a request that an SDK retries gets the first answer
- audit=headers, audit=body: put these into the audit log
- probe: the endpoint is ready only after a connection to its target`,
		Example:           "  cloche endpoint add build model=http://127.0.0.1:8080,openai\n  cloche endpoint add --replace build model=http://127.0.0.1:8081,openai\n  cloche endpoint add build db=tcp://127.0.0.1:5432@5432",
		Args:              command.Exactly(2, "SANDBOX and NAME=TARGET"),
		ValidArgsFunction: a.CompleteSandboxes,
		RunE: func(c *cobra.Command, args []string) error {
			e, err := parseEndpoint(args[1])
			if err != nil {
				return err
			}
			if err := f.fill(&e); err != nil {
				return err
			}
			return a.WithDaemon(c, func(ctx context.Context, conn *command.Connection) error {
				set := conn.AddEndpoint
				if replace {
					set = conn.SetEndpoint
				}
				st, err := set(ctx, args[0], e)
				if err != nil {
					return err
				}
				if a.JSON {
					return a.PrintJSON(st)
				}
				_, err = fmt.Fprintln(a.Stdio.Out, terminal.Printable(st.SandboxView.URL))
				return err
			})
		},
	}
	c.Flags().BoolVar(&replace, "replace", false, "change the target of the endpoint of that name; requests in progress continue at the old one")
	f.add(c.Flags())
	return c
}

// endpointFlags are what an endpoint is beside its name, target and address.
type endpointFlags struct {
	env, headers, secrets, methods, paths []string
	perSecond                             float64
	bytes, filter                         string
}

func (f *endpointFlags) add(flags *pflag.FlagSet) {
	flags.StringArrayVar(&f.env, "env", nil, "`NAME=VALUE` for processes that start from now on; {base}, {host} and {port} in it are the address (repeatable)")
	flags.StringArrayVar(&f.headers, "header", nil, "a header to set on every request, `NAME=VALUE` (repeatable)")
	flags.StringArrayVar(&f.secrets, "secret-header", nil, "a header to set to the value of a secret, `NAME=SECRET` (repeatable)")
	flags.StringArrayVar(&f.methods, "method", nil, "allow only this `METHOD` (repeatable)")
	flags.StringArrayVar(&f.paths, "path", nil, "allow only this `PATH`, or everything below it with /* at its end (repeatable)")
	flags.Float64Var(&f.perSecond, "requests-per-second", 0, "refuse more requests than this `NUMBER`, with a burst of one second")
	flags.StringVar(&f.filter, "body-filter", "", "what to do with requests for capabilities of a model's provider, such as web search: `strip` removes them, refuse refuses the request, off passes them (default strip with a preset)")
	flags.StringVar(&f.bytes, "bytes-per-second", "", "limit the traffic to this `SIZE`, such as 1MiB; more bytes wait")
}

// fill puts what was asked for into an endpoint.
func (f *endpointFlags) fill(e *api.Endpoint) (err error) {
	if e.Env, err = command.ParseLabels("--env", f.env); err != nil {
		return err
	}
	h := &api.EndpointHTTP{Methods: f.methods, Paths: f.paths, BodyFilter: f.filter}
	if e.HTTP != nil {
		h.Once, h.BodyFilter = e.HTTP.Once, cmp.Or(f.filter, e.HTTP.BodyFilter)
	}
	if h.SetHeaders, err = command.ParseLabels("--header", f.headers); err != nil {
		return err
	}
	if h.SecretHeaders, err = command.ParseLabels("--secret-header", f.secrets); err != nil {
		return err
	}
	if len(f.methods)+len(f.paths)+len(f.headers)+len(f.secrets)+len(f.filter) > 0 {
		e.HTTP = h
	}
	e.Limits.RequestsPerSecond = f.perSecond
	if f.bytes != "" {
		if e.Limits.BytesPerSecond, err = command.ParseSize("--bytes-per-second", "limits.bytes_per_second", f.bytes); err != nil {
			return err
		}
	}
	return command.CheckText("endpoint", append(append([]string{}, f.methods...), f.paths...)...)
}

func endpointRemoveCommand(a *command.CLI) *cobra.Command {
	var grace string
	c := &cobra.Command{
		Use:   "rm [flags] SANDBOX NAME",
		Short: "Remove an endpoint",
		Long: `Remove an endpoint. New requests are refused; requests in progress have a grace
period, and then are cut off.`,
		Example:           "  cloche endpoint rm build model\n  cloche endpoint rm --grace 0 build model",
		Args:              command.Exactly(2, "SANDBOX and NAME"),
		ValidArgsFunction: a.CompleteSandboxes,
		RunE: func(c *cobra.Command, args []string) error {
			var wait *time.Duration
			if c.Flags().Changed("grace") {
				ms, err := command.ParseTimeout("--grace", "grace_ms", grace)
				if err != nil {
					return err
				}
				wait = new(time.Duration(ms) * time.Millisecond)
			}
			return a.WithDaemon(c, func(ctx context.Context, conn *command.Connection) error {
				removed, err := conn.RemoveEndpoint(ctx, args[0], args[1], wait)
				if err != nil {
					return err
				}
				if a.JSON {
					return a.PrintJSON(removed)
				}
				if removed.Cancelled > 0 {
					a.Note("%d under way were cut off", removed.Cancelled)
				}
				return nil
			})
		},
	}
	c.Flags().StringVar(&grace, "grace", "", "the grace period of requests in progress, a `duration` (default 5s)")
	return c
}

func endpointServeCommand(a *command.CLI) *cobra.Command {
	return &cobra.Command{
		Use:   "serve SANDBOX NAME ADDRESS",
		Short: "Serve an endpoint from this machine",
		Long: `Serve an endpoint with the target client or client+tcp from this machine, which
need not be the daemon's. Each connection is forwarded to ADDRESS: HOST:PORT, or
PORT of this machine. It ends when it is interrupted, with status 0, or when the
endpoint ends.`,
		Example:           "  cloche endpoint add build model=client,openai\n  cloche endpoint serve build model 127.0.0.1:8080",
		Args:              command.Exactly(3, "SANDBOX, NAME and ADDRESS"),
		ValidArgsFunction: a.CompleteSandboxes,
		RunE: func(c *cobra.Command, args []string) error {
			address := args[2]
			if _, err := strconv.ParseUint(address, 10, 16); err == nil {
				address = "127.0.0.1:" + address
			}
			if _, _, err := net.SplitHostPort(address); err != nil {
				return api.Invalid("arguments", "%q is not HOST:PORT", terminal.Clip(args[2])).WithHint("write it such as 127.0.0.1:8080")
			}
			return a.WithDaemon(c, func(ctx context.Context, conn *command.Connection) error {
				return serveEndpoint(ctx, a, conn, args[0], args[1], address)
			})
		},
	}
}

// serveEndpoint hands each connection on until ctx or the endpoint ends.
func serveEndpoint(ctx context.Context, a *command.CLI, conn *command.Connection, ref, name, address string) error {
	ln, err := conn.ListenEndpoint(ctx, ref, name)
	if err != nil {
		return err
	}
	defer ln.Close()
	if a.JSON {
		if err := a.PrintJSON(map[string]string{"endpoint": name, "serves": address}); err != nil {
			return err
		}
	} else if _, err := fmt.Fprintf(a.Stdio.Out, "%s -> %s\n", name, terminal.Printable(address)); err != nil {
		return command.OutputError(err)
	}
	stop := context.AfterFunc(ctx, func() { _ = ln.Close() })
	defer stop()
	var carried sync.WaitGroup
	defer carried.Wait()
	for {
		remote, err := ln.Accept()
		if ctx.Err() != nil {
			return nil
		}
		if err != nil {
			return api.Errorf(api.CodeUnavailable, "endpoint %s is served no more: it ended, or the daemon went away", name).WithCause(err)
		}
		carried.Go(func() {
			var d net.Dialer
			local, err := d.DialContext(ctx, "tcp", address)
			if err != nil {
				if ctx.Err() == nil {
					a.Warn("connect to %s: %s", address, err)
				}
				cut(remote)
				return
			}
			command.Relay(ctx, local, remote)
		})
	}
}

// cut ends a connection so that the other side sees that it broke off.
func cut(c net.Conn) {
	if r, ok := c.(interface{ Reset() }); ok {
		r.Reset()
		return
	}
	_ = c.Close()
}
