package cli

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
)

const endpointUsage = "a service of the daemon's host at an address inside, `NAME=TARGET[@LISTEN][,PRESET...]`, such as model=http://127.0.0.1:8080@127.0.0.1:13131,openai, or with a path such as /run/model.sock as LISTEN; with record=NAME after it what goes through is kept, and the target replay:NAME answers so again (repeatable)"

// parseEndpoint reads NAME=TARGET[@[ADDRESS:]PORT][,PRESET...].
func parseEndpoint(text string) (api.Endpoint, error) {
	bad := func(why string) (api.Endpoint, error) {
		return api.Endpoint{}, api.Invalid("endpoints", "endpoint %q %s", clip(text), why).
			WithHint("write NAME=TARGET[@LISTEN][,PRESET...], such as model=http://127.0.0.1:8080@127.0.0.1:13131,openai")
	}
	if err := checkText("endpoints", text); err != nil {
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
		return "has an option " + strconv.Quote(clip(key)) + ", which is none of user, record, match, pace, probe, once, audit and body-filter"
	}
	e.Presets = append(e.Presets, option)
	return ""
}

func parseEndpoints(texts []string) ([]api.Endpoint, error) {
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

func (a *app) endpointCommand() *cobra.Command {
	c := &cobra.Command{
		Use:   "endpoint",
		Short: "Services of the host inside a sandbox",
		Long: `Services of the daemon's host that a sandbox finds at addresses of its own
loopback, whatever its network is: a model, tools, a database. A sandbox without
any network reaches these and nothing else. What the target may be, the policy
file says in its endpoints.`,
		Example: "  cloche endpoint add build model=http://127.0.0.1:8080@127.0.0.1:13131,openai\n  cloche endpoint ls build\n  cloche endpoint rm build model",
		GroupID: groupProcess,
		Args:    a.unknownVerb,
		RunE:    func(c *cobra.Command, _ []string) error { return c.Help() },
	}
	c.AddCommand(a.endpointListCommand(), a.endpointAddCommand(), a.endpointRemoveCommand(), a.endpointServeCommand())
	return c
}

func (a *app) endpointListCommand() *cobra.Command {
	return &cobra.Command{
		Use:               "ls SANDBOX",
		Short:             "List the endpoints of a sandbox",
		Long:              "List the endpoints of a sandbox, with their states and what went through them.",
		Example:           "  cloche endpoint ls build\n  cloche endpoint ls --json build",
		Args:              exactly(1, "SANDBOX"),
		ValidArgsFunction: a.completeSandboxes,
		RunE: func(c *cobra.Command, args []string) error {
			return a.withDaemon(c, func(ctx context.Context, conn *connection) error {
				list, err := conn.Endpoints(ctx, args[0])
				if err != nil {
					return err
				}
				if a.json {
					list.Endpoints = append([]api.EndpointStatus{}, list.Endpoints...)
					return a.printJSON(list)
				}
				var rows [][]string
				for _, e := range list.Endpoints {
					rows = append(rows, endpointRow(e))
				}
				return writeTable(a.stdio.Out, []string{"NAME", "STATE", "INSIDE", "TARGET", "REQUESTS", "ACTIVE", "REASON"}, rows)
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

func (a *app) endpointAddCommand() *cobra.Command {
	var replace bool
	var f endpointFlags
	c := &cobra.Command{
		Use:   "add [flags] SANDBOX NAME=TARGET[@LISTEN][,PRESET...]",
		Short: "Put an endpoint into a running sandbox",
		Long: `Put an endpoint into a running sandbox. TARGET is http://HOST[:PORT][/BASE] or
https, of which requests reach what is below BASE; tcp://HOST:PORT for bytes as
they are; unix:///SOCKET or unix+tcp:///SOCKET for a socket of the host's files;
client or client+tcp, which "cloche endpoint serve" serves; replay:NAME, where a
recording answers. LISTEN is 127.0.0.1:PORT inside (default
` + api.DefaultEndpointListen + `), or "auto" for a port that is free, which is printed, or the
path of a socket inside, such as /run/model.sock, which is everybody's inside, or
with user=NAME after it that user's alone. A
PRESET, openai or anthropic, gives the processes that are started from now on the
variables that its SDK reads. Among the presets can be
record=NAME, which keeps what goes through as a recording; match=order, by which
a recording gives its answers in their order, not by what is asked; pace, by
which they take as long as they took; body-filter=FILTER; once, with which a
request that an SDK tries again gets the answer to the first; audit=headers or
audit=body, with which these go on record; and probe, with which it is ready when
its target has been connected to, and not before.`,
		Example:           "  cloche endpoint add build model=http://127.0.0.1:8080,openai\n  cloche endpoint add --replace build model=http://127.0.0.1:8081,openai\n  cloche endpoint add build db=tcp://127.0.0.1:5432@5432",
		Args:              exactly(2, "SANDBOX and NAME=TARGET"),
		ValidArgsFunction: a.completeSandboxes,
		RunE: func(c *cobra.Command, args []string) error {
			e, err := parseEndpoint(args[1])
			if err != nil {
				return err
			}
			if err := f.fill(&e); err != nil {
				return err
			}
			return a.withDaemon(c, func(ctx context.Context, conn *connection) error {
				set := conn.AddEndpoint
				if replace {
					set = conn.SetEndpoint
				}
				st, err := set(ctx, args[0], e)
				if err != nil {
					return err
				}
				if a.json {
					return a.printJSON(st)
				}
				_, err = fmt.Fprintln(a.stdio.Out, printable(st.SandboxView.URL))
				return err
			})
		},
	}
	c.Flags().BoolVar(&replace, "replace", false, "give the endpoint of that name this target; what is under way goes on to the old one")
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
	flags.StringArrayVar(&f.env, "env", nil, "`NAME=VALUE` for processes that are started from now on; {base}, {host} and {port} in it are the address (repeatable)")
	flags.StringArrayVar(&f.headers, "header", nil, "a header to set on every request, `NAME=VALUE` (repeatable)")
	flags.StringArrayVar(&f.secrets, "secret-header", nil, "a header to set to the value of a secret, `NAME=SECRET` (repeatable)")
	flags.StringArrayVar(&f.methods, "method", nil, "let only this `METHOD` through (repeatable)")
	flags.StringArrayVar(&f.paths, "path", nil, "let only this `PATH` through, or all below it with a /* at its end (repeatable)")
	flags.Float64Var(&f.perSecond, "requests-per-second", 0, "refuse what comes more often than this `NUMBER`; a second's worth may come at once")
	flags.StringVar(&f.filter, "body-filter", "", "what becomes of requests that have a model's provider do something by itself, such as search the web: `strip` takes that out, refuse refuses them, off lets them through (default strip with a preset)")
	flags.StringVar(&f.bytes, "bytes-per-second", "", "let no more through than this `SIZE`, such as 1MiB; the rest waits")
}

// fill puts what was asked for into an endpoint.
func (f *endpointFlags) fill(e *api.Endpoint) (err error) {
	if e.Env, err = parseLabels("--env", f.env); err != nil {
		return err
	}
	h := &api.EndpointHTTP{Methods: f.methods, Paths: f.paths, BodyFilter: f.filter}
	if e.HTTP != nil {
		h.Once, h.BodyFilter = e.HTTP.Once, cmp.Or(f.filter, e.HTTP.BodyFilter)
	}
	if h.SetHeaders, err = parseLabels("--header", f.headers); err != nil {
		return err
	}
	if h.SecretHeaders, err = parseLabels("--secret-header", f.secrets); err != nil {
		return err
	}
	if len(f.methods)+len(f.paths)+len(f.headers)+len(f.secrets)+len(f.filter) > 0 {
		e.HTTP = h
	}
	e.Limits.RequestsPerSecond = f.perSecond
	if f.bytes != "" {
		if e.Limits.BytesPerSecond, err = parseSize("--bytes-per-second", "limits.bytes_per_second", f.bytes); err != nil {
			return err
		}
	}
	return checkText("endpoint", append(append([]string{}, f.methods...), f.paths...)...)
}

func (a *app) endpointRemoveCommand() *cobra.Command {
	var grace string
	c := &cobra.Command{
		Use:   "rm [flags] SANDBOX NAME",
		Short: "Take an endpoint away",
		Long: `Take an endpoint away. Nothing new begins; what is under way has the grace to end,
and the rest is cut off.`,
		Example:           "  cloche endpoint rm build model\n  cloche endpoint rm --grace 0 build model",
		Args:              exactly(2, "SANDBOX and NAME"),
		ValidArgsFunction: a.completeSandboxes,
		RunE: func(c *cobra.Command, args []string) error {
			var wait *time.Duration
			if c.Flags().Changed("grace") {
				ms, err := parseTimeout("--grace", "grace_ms", grace)
				if err != nil {
					return err
				}
				wait = new(time.Duration(ms) * time.Millisecond)
			}
			return a.withDaemon(c, func(ctx context.Context, conn *connection) error {
				removed, err := conn.RemoveEndpoint(ctx, args[0], args[1], wait)
				if err != nil {
					return err
				}
				if a.json {
					return a.printJSON(removed)
				}
				if removed.Cancelled > 0 {
					a.note("%d under way were cut off", removed.Cancelled)
				}
				return nil
			})
		},
	}
	c.Flags().StringVar(&grace, "grace", "", "how long what is under way may take to end, a `duration` (default 5s)")
	return c
}

func (a *app) endpointServeCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "serve SANDBOX NAME ADDRESS",
		Short: "Serve an endpoint from this machine",
		Long: `Serve an endpoint whose target is client or client+tcp from this machine, which
may be another than the daemon's: each connection goes on to ADDRESS, HOST:PORT or
PORT of this machine. It goes on until it is interrupted, which is status 0, or
until the endpoint ends.`,
		Example:           "  cloche endpoint add build model=client,openai\n  cloche endpoint serve build model 127.0.0.1:8080",
		Args:              exactly(3, "SANDBOX, NAME and ADDRESS"),
		ValidArgsFunction: a.completeSandboxes,
		RunE: func(c *cobra.Command, args []string) error {
			address := args[2]
			if _, err := strconv.ParseUint(address, 10, 16); err == nil {
				address = "127.0.0.1:" + address
			}
			if _, _, err := net.SplitHostPort(address); err != nil {
				return api.Invalid("arguments", "%q is not HOST:PORT", clip(args[2])).WithHint("write it such as 127.0.0.1:8080")
			}
			return a.withDaemon(c, func(ctx context.Context, conn *connection) error {
				return a.serveEndpoint(ctx, conn, args[0], args[1], address)
			})
		},
	}
}

// serveEndpoint hands each connection on until ctx or the endpoint ends.
func (a *app) serveEndpoint(ctx context.Context, conn *connection, ref, name, address string) error {
	ln, err := conn.ListenEndpoint(ctx, ref, name)
	if err != nil {
		return err
	}
	defer ln.Close()
	if a.json {
		if err := a.printJSON(map[string]string{"endpoint": name, "serves": address}); err != nil {
			return err
		}
	} else if _, err := fmt.Fprintf(a.stdio.Out, "%s -> %s\n", name, printable(address)); err != nil {
		return outputError(err)
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
					a.warn("connect to %s: %s", address, err)
				}
				cut(remote)
				return
			}
			carry(ctx, local, remote)
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
