// Package core is the only way in: one method for each verb, and each does the
// same three things. It lets policy decide, does what was permitted, and records
// what became of it.
package core

import (
	"context"
	"log/slog"
	"slices"

	"github.com/cloche-dev/cloche"
	"github.com/cloche-dev/cloche/internal/agent"
	"github.com/cloche-dev/cloche/internal/audit"
	"github.com/cloche-dev/cloche/internal/image"
	"github.com/cloche-dev/cloche/internal/policy"
	"github.com/cloche-dev/cloche/internal/sandbox"
)

// Front doors import core and nothing below it; these are the names that they
// need from there.
type (
	// Caller is who asks.
	Caller = policy.Caller
	// Event is one thing that a live exec said.
	Event = agent.Event
)

// UnixCaller names the peer of a unix socket.
func UnixCaller(peerUID, daemonUID int) Caller { return policy.UnixCaller(peerUID, daemonUID) }

// TCPCaller names whoever showed the token.
func TCPCaller() Caller { return policy.TCPCaller() }

// InProcessCaller names the user whose own process this is.
func InProcessCaller(uid int) Caller { return policy.InProcessCaller(uid) }

// Options are what a Service works with; all are required.
type Options struct {
	Rules     policy.Rules
	Sandboxes *sandbox.Manager
	Images    *image.Store
	Audit     *audit.Log
	Prober    *Prober
	Logger    *slog.Logger
	Version   string
	// Home is Cloche's home, which no sandbox may see.
	Home string
	// UserHome is the home directory of the user that Cloche runs as, or empty.
	UserHome string
}

// Service has the verbs. It is safe for concurrent use.
type Service struct {
	opts Options
	log  *slog.Logger
}

// New makes a Service.
func New(opts Options) *Service { return &Service{opts: opts, log: opts.Logger} }

// Status tells whether sandboxes can be had.
func (s *Service) Status(ctx context.Context, caller Caller) cloche.Status {
	_, all := s.opts.Sandboxes.Count("")
	st := cloche.Status{Version: s.opts.Version, Enabled: s.opts.Rules.IsEnabled(), Sandboxes: all}
	report, err := policy.ChooseEngine(caller, s.opts.Rules, s.opts.Prober.Reports(ctx))
	st.Engine = cloche.EngineStatus{Name: report.Name, Available: err == nil}
	if err != nil {
		st.Engine.Reason = err.Error()
	}
	st.Available = st.Enabled && st.Engine.Available
	return st
}

// Doctor tells what each engine can do on this machine.
func (s *Service) Doctor(ctx context.Context, caller Caller) (cloche.Doctor, error) {
	if err := policy.AuthorizeHost(caller, policy.VerbDoctor); err != nil {
		return cloche.Doctor{}, err
	}
	return cloche.Doctor{
		Version: s.opts.Version, Host: s.opts.Prober.Host(),
		Engines: slices.Clone(s.opts.Prober.Refresh(ctx)),
	}, nil
}

// Images lists the root filesystems that a create can name.
func (s *Service) Images(_ context.Context, caller Caller) (cloche.ImageList, error) {
	if err := policy.AuthorizeHost(caller, policy.VerbImages); err != nil {
		return cloche.ImageList{}, err
	}
	return cloche.ImageList{Images: s.opts.Images.List()}, nil
}
