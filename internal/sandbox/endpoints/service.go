package endpoints

import (
	"context"
	"log/slog"
	"net/netip"
	"sync/atomic"
	"time"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/agent"
	"github.com/cloche-dev/cloche/internal/endpoint"
	"github.com/cloche-dev/cloche/internal/endpoint/recording"
	"github.com/cloche-dev/cloche/internal/policy"
	"github.com/cloche-dev/cloche/internal/secret"
)

const (
	// maxExchanges bounds the records of exchanges that wait to be reported.
	maxExchanges = 10_000
	// maxCaptured bounds the bytes of headers and bodies in them.
	maxCaptured = 8 << 20
	// callTimeout bounds a call to an agent.
	callTimeout = 30 * time.Second
)

// Options are what a [Service] is made of.
type Options struct {
	// Context ends when no more endpoints are served.
	Context context.Context //nolint:containedctx // the service lives as long
	// Background runs a function that the owner of the service waits for. It reports false, and
	// runs nothing, when the owner closes.
	Background func(func()) (runs bool)
	Logger     *slog.Logger
	// Recordings are what endpoints record and replay; it may be nil.
	Recordings *recording.Store
	// OwnAddress reports whether the daemon listens at an address, to which no endpoint may lead. It
	// may be nil.
	OwnAddress func(netip.AddrPort) bool
	// Sockets bounds the connections of all endpoints to their targets; 0 is no bound.
	Sockets int64
	// Secrets reads the value of a secret. Nil: no endpoint adds one.
	Secrets func(ctx context.Context, name string) (string, error)
	// Redact removes the values of secrets from a text.
	Redact func(text string) string
	// Exchanged is called for every request that went through an endpoint, in no particular order.
	// It may block for a while. It may be nil.
	Exchanged func(api.Exchange)
	// Find returns the endpoints of the sandbox of that name, to a caller that may use the verb.
	Find func(caller policy.Caller, verb policy.Verb, ref string) (*Table, error)
}

// Names are the names of a sandbox.
type Names struct{ ID, Name, Tenant string }

// Sandbox is what a [Table] needs of its sandbox. Its methods are safe for concurrent use.
type Sandbox interface {
	// Agent returns a client of the sandbox's agent, or says why it cannot.
	Agent(ctx context.Context) (*agent.Client, error)
	// SharedDirs are the directories that programs outside see too.
	SharedDirs() []string
	// Use counts as use of the sandbox until release is called.
	Use() (release func())
	// Explain says of an error of the agent what became of the sandbox.
	Explain(err error) error
	// Save puts the declared endpoints on record.
	Save(specs []api.Endpoint) error
	// Changed reports the state of an endpoint.
	Changed(endpoint string, state api.EndpointState, reason string)
	// StoppedAt is when the sandbox ended; nil while it runs.
	StoppedAt() *time.Time
}

// Service serves the endpoints of all sandboxes. It is safe for concurrent use.
type Service struct {
	o Options
	// sockets are those of all endpoints; nil is no bound.
	sockets *endpoint.Sockets
	// exchanges wait to be reported; captured is how many bytes of captures they hold.
	exchanges chan api.Exchange
	captured  atomic.Int64
}

// New returns a service. It runs in the background until the context of its options ends.
func New(o Options) *Service {
	s := &Service{o: o}
	if o.Sockets > 0 {
		s.sockets = endpoint.NewSockets(o.Sockets)
	}
	if o.Exchanged != nil {
		s.exchanges = make(chan api.Exchange, maxExchanges)
		o.Background(s.reportExchanges)
	}
	return s
}

// secrets are where endpoints find the values that they add; nil: there are none. Policy has
// decided which of them may go to the target.
func (s *Service) secrets() endpoint.Secrets {
	if s.o.Secrets == nil {
		return nil
	}
	return secretValues(s.o.Secrets)
}

// secretValues is a function that is endpoint.Secrets.
type secretValues func(ctx context.Context, name string) (string, error)

// Value implements endpoint.Secrets.
func (f secretValues) Value(ctx context.Context, name, _ string) (string, error) { return f(ctx, name) }

// observer is told what happens at one endpoint.
type observer struct {
	t *Table
	e *served
}

// Exchanged implements endpoint.Observer.
func (o *observer) Exchanged(x api.Exchange) { o.t.service.exchanged(o.e, x) }

// Changed implements endpoint.Observer.
func (o *observer) Changed(state api.EndpointState, reason string) {
	o.t.sandbox.Changed(o.e.name, state, reason)
}

// exchanged queues the record of an exchange. The oldest gives way when the queue is full.
func (s *Service) exchanged(e *served, x api.Exchange) {
	if s.exchanges == nil {
		return
	}
	x = secret.In(s.o.Redact, x)
	if n := x.Capture.Size(); n > 0 && s.captured.Add(n) > maxCaptured {
		s.captured.Add(-n)
		x.Capture = &api.ExchangeCapture{Omitted: []string{"too much waits to be recorded"}}
	}
	for {
		select {
		case s.exchanges <- x:
			return
		default:
		}
		select {
		case old := <-s.exchanges:
			s.captured.Add(-old.Capture.Size())
			e.unrecorded.Add(1)
		default:
		}
	}
}

// reportExchanges reports records until the context ends and no more come.
func (s *Service) reportExchanges() {
	for {
		select {
		case x := <-s.exchanges:
			s.report(x)
			continue
		case <-s.o.Context.Done():
		}
		for {
			select {
			case x := <-s.exchanges:
				s.report(x)
			default:
				return
			}
		}
	}
}

func (s *Service) report(x api.Exchange) {
	s.captured.Add(-x.Capture.Size())
	s.o.Exchanged(x)
}
