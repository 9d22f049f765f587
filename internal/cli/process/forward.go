package process

import (
	"context"
	"fmt"
	"net"
	"strconv"
	"strings"
	"sync"

	"github.com/spf13/cobra"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/cli/command"
	"github.com/cloche-dev/cloche/internal/terminal"
)

// maxForwarded bounds the connections of one forward. More wait to be accepted.
const maxForwarded = 256

// forward is one port of this machine that leads to one inside.
type forward struct {
	Local  string `json:"local"` // address and port
	Remote int    `json:"remote"`

	listener net.Listener
}

// PortForwardCommand is "cloche port-forward".
func PortForwardCommand(a *command.CLI) *cobra.Command {
	return &cobra.Command{
		Use:   "port-forward SANDBOX [LOCAL:]REMOTE...",
		Short: "Forward local ports into a sandbox",
		Long: `Listen on ports of this machine's loopback address, 127.0.0.1, and forward each
connection to a port of 127.0.0.1 or ::1 in the sandbox, which needs no network.
LOCAL 0 is any free port; without LOCAL it is the same as REMOTE. The local
addresses are printed. It runs until it is interrupted, with status 0.`,
		Example:           "  cloche port-forward build 8080:8000\n  cloche port-forward build 0:5432 9229",
		GroupID:           command.GroupProcess,
		Args:              forwardArgs,
		ValidArgsFunction: a.CompleteSandboxes,
		RunE: func(c *cobra.Command, args []string) error {
			var pairs [][2]int
			for _, text := range args[1:] {
				local, remote, err := parsePorts(text)
				if err != nil {
					return err
				}
				pairs = append(pairs, [2]int{local, remote})
			}
			return a.WithDaemon(c, func(ctx context.Context, conn *command.Connection) error {
				return forwardPorts(ctx, a, conn, args[0], pairs)
			})
		},
	}
}

func forwardArgs(c *cobra.Command, args []string) error {
	if len(args) < 2 {
		return api.Invalid("arguments", "%s: want SANDBOX and at least one port", c.CommandPath()).
			WithHint("write the port here and the port inside, such as %s build 8080:8000", c.CommandPath())
	}
	return nil
}

// parsePorts reads LOCAL:REMOTE or REMOTE.
func parsePorts(s string) (local, remote int, err error) {
	l, r, two := strings.Cut(s, ":")
	if !two {
		l, r = s, s
	}
	local, lerr := strconv.Atoi(l)
	remote, rerr := strconv.Atoi(r)
	if lerr != nil || rerr != nil || local < 0 || local > 65535 || remote < 1 || remote > 65535 {
		return 0, 0, api.Invalid("ports", "%q is not LOCAL:REMOTE", terminal.Clip(s)).
			WithHint("write the port here and the port inside, such as 8080:8000; 0:8000 takes any free port here")
	}
	return local, remote, nil
}

func forwardPorts(ctx context.Context, a *command.CLI, conn *command.Connection, ref string, pairs [][2]int) error {
	sb, err := conn.Get(ctx, ref)
	if err != nil {
		return err
	}
	if sb.State != api.StateRunning {
		return api.Errorf(api.CodeState, "sandbox %s is %s, and nothing in it answers", terminal.Printable(ref), sb.State).
			WithHint("forward the ports of one that is running")
	}
	var forwards []*forward
	defer func() {
		for _, f := range forwards {
			_ = f.listener.Close()
		}
	}()
	for _, p := range pairs {
		f, err := listen(ctx, p[0], p[1])
		if err != nil {
			return err
		}
		forwards = append(forwards, f)
	}
	var serving sync.WaitGroup
	defer serving.Wait()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	failed := make(chan error, len(forwards))
	for _, f := range forwards {
		if err := announce(a, f); err != nil {
			return err
		}
		serving.Go(func() { failed <- serveForward(ctx, a, conn, sb.ID, f) })
	}
	for range forwards {
		if err := <-failed; err != nil && ctx.Err() == nil {
			return err
		}
	}
	return nil
}

func listen(ctx context.Context, local, remote int) (*forward, error) {
	var lc net.ListenConfig
	ln, err := lc.Listen(ctx, "tcp4", net.JoinHostPort("127.0.0.1", strconv.Itoa(local)))
	if err != nil {
		return nil, api.Invalid("ports", "listen on port %d of this machine: %w", local, err).
			WithHint("choose another port, or 0 for any that is free: 0:%d", remote)
	}
	return &forward{Local: ln.Addr().String(), Remote: remote, listener: ln}, nil
}

func announce(a *command.CLI, f *forward) error {
	if a.JSON {
		return a.PrintJSON(f)
	}
	if _, err := fmt.Fprintf(a.Stdio.Out, "%s -> %d\n", f.Local, f.Remote); err != nil {
		return command.OutputError(err)
	}
	return nil
}

// serveForward accepts connections until ctx ends. It returns when all have
// ended.
func serveForward(ctx context.Context, a *command.CLI, conn *command.Connection, sandbox string, f *forward) error {
	stop := context.AfterFunc(ctx, func() { _ = f.listener.Close() })
	defer stop()
	var carried sync.WaitGroup
	defer carried.Wait()
	slots := make(chan struct{}, maxForwarded)
	for {
		local, err := f.listener.Accept()
		if err != nil {
			if ctx.Err() != nil {
				return nil
			}
			return api.Errorf(api.CodeInternal, "accept connections on %s: %w", f.Local, err)
		}
		slots <- struct{}{}
		carried.Go(func() {
			defer func() { <-slots }()
			defer local.Close()
			remote, err := conn.DialPort(ctx, sandbox, f.Remote)
			if err != nil {
				if ctx.Err() == nil {
					a.Warn("port %d: %s", f.Remote, command.AsError(err).Message)
				}
				return
			}
			command.Relay(ctx, local, remote)
		})
	}
}
