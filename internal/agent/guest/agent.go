//go:build linux

package guest

import (
	"errors"
	"fmt"
	"net"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/cloche-dev/cloche/internal/agent"
	"github.com/cloche-dev/cloche/internal/agent/guest/fsop"

	"github.com/cloche-dev/cloche/internal/agent/guest/pathwalk"
	"github.com/cloche-dev/cloche/internal/agent/guest/ports"
	"github.com/cloche-dev/cloche/internal/agent/guest/process"
	"github.com/cloche-dev/cloche/internal/agent/guest/sudo"
	"github.com/cloche-dev/cloche/internal/agent/guest/tools"
	"github.com/cloche-dev/cloche/internal/agent/wire"
)

// Agent is the program inside one sandbox.
type Agent struct {
	token     *token
	versions  []int // of the protocol, newest first
	procs     *process.Manager
	conns     *conns
	rules     *pathwalk.Restrictions
	listeners *ports.Listeners
	files     *fsop.Files
	tools     *tools.Tools
	// given: the engine gave more than a configuration, and what connects comes from the
	// host itself.
	given bool
	// first and spare are connections that the agent was born with; may be nil.
	first, spare net.Conn
	wg           sync.WaitGroup
}

// newAgent takes the agent's identity and prepares what starts processes. Given says
// that the engine gave it more than a configuration.
func newAgent(cfg agent.Config, versions []int, b *base) (*Agent, error) {
	b.users.Normal = cfg.User
	rules := pathwalk.NewRestrictions(b.id, b.users)
	a := &Agent{
		token: newToken(cfg.Token), versions: versions, given: b.given, rules: rules, conns: newConns(),
		files: fsop.New(b.id, b.users, rules), tools: tools.New(b.id, b.users, rules), procs: b.procs, first: b.first, spare: b.spare,
	}
	if cfg.PidsMax != b.cfg.PidsMax {
		if err := b.procs.LimitPids(cfg.PidsMax); err != nil {
			return nil, err
		}
	}
	a.listeners = ports.New(b.id, b.users, rules, portOf(cfg), a.procs.Socket)
	if cfg.Sudo {
		if err := a.serveSudo(); err != nil {
			return nil, err
		}
	}
	if b.given {
		if err := carry(&a.wg); err != nil {
			return nil, err
		}
	}
	return a, nil
}

// serveSudo starts the commands of sudo for programs that are not root's.
func (a *Agent) serveSudo() error {
	ln, err := sudo.Listen(a.procs.Socket)
	if err != nil {
		return fmt.Errorf("listen for sudo: %w", err)
	}
	s := sudo.NewServer(func(x *wire.Exec, fds [3]int) (sudo.Program, error) {
		p, err := a.procs.StartDirect(x, fds)
		if err != nil {
			return nil, err
		}
		return p, nil
	})
	a.wg.Go(func() { _ = s.Serve(ln, a.wg.Go) })
	return nil
}

// portOf is the port that the agent listens on.
func portOf(cfg agent.Config) int {
	if cfg.Port == 0 {
		return agent.Port
	}
	return cfg.Port
}

// serve accepts connections until the listener fails, which it does not.
func (a *Agent) serve(ln net.Listener) error {
	if a.first != nil {
		a.conns.admit(&a.conns.strangers, maxStrangers, a.first)
		a.wg.Go(func() { a.handle(a.first) })
	}
	if a.spare != nil {
		a.wg.Go(func() { a.handleSpare(a.spare) })
	}
	for {
		conn, err := ln.Accept()
		if err != nil {
			if ne, ok := errors.AsType[net.Error](err); ok && ne.Timeout() {
				continue
			}
			if errors.Is(err, unix.EMFILE) || errors.Is(err, unix.ENFILE) || errors.Is(err, unix.ECONNABORTED) || errors.Is(err, unix.ENOBUFS) || errors.Is(err, unix.ENOMEM) {
				continue
			}
			return fmt.Errorf("accept: %w", err)
		}
		// In the order of their arrival: the oldest goes first.
		a.conns.admit(&a.conns.strangers, maxStrangers, conn)
		a.wg.Go(func() { a.handle(conn) })
	}
}
