//go:build linux && !remoteonly

package network

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"sync"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/egress/fdstore"
	"github.com/cloche-dev/cloche/internal/egress/netstack"
	"github.com/cloche-dev/cloche/internal/egress/rule"
	"github.com/cloche-dev/cloche/internal/egress/upstream"
	"github.com/cloche-dev/cloche/internal/policy"
)

// Options are what Networks work with.
type Options struct {
	// Store keeps links for the next daemon; nil is for sandboxes that end with this
	// process.
	Store *fdstore.Client
	// Logger receives errors that no caller waits for; nil discards them.
	Logger *slog.Logger
	// Own says whether a public address is this machine's; nil asks the machine.
	Own func(netip.Addr) bool
	// Redact takes the values of secrets out of a text, for whatever is stored or told of
	// what a sandbox asked for; nil knows none.
	Redact func(string) string
	// Roots are those by which hosts are verified whose TLS is opened; nil is the
	// machine's.
	Roots *x509.CertPool
}

// Networks are the networks of the sandboxes of one owner. One without networks costs
// only its own memory.
type Networks struct {
	opts  Options
	log   *slog.Logger
	ctx   context.Context // of flows and log lines
	queue chan entry
	wg    sync.WaitGroup // the writer of records

	mu      sync.Mutex
	gateway *netstack.Gateway // nil until the first network
	open    map[string]*Network
	closed  bool
}

// entry is a record on its network to the log, or a mark behind those before it.
type entry struct {
	network *Network
	rec     api.EgressRecord
	reached chan struct{} // of a mark: is closed when the writer is there
}

// maxQueue is how many records may wait; the next Record waits.
const maxQueue = 1024

// New makes Networks. Of ctx it keeps the values; Close ends them.
func New(ctx context.Context, o Options) *Networks {
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	if o.Redact == nil {
		o.Redact = func(text string) string { return text }
	}
	return &Networks{opts: o, log: o.Logger, ctx: context.WithoutCancel(ctx), open: map[string]*Network{}}
}

// Open makes the network of a new sandbox. On an error nothing is left but files in
// the network's directory.
func (ws *Networks) Open(ctx context.Context, p Place) (*Network, error) {
	if err := os.Mkdir(p.Dir, 0o700); err != nil && !errors.Is(err, os.ErrExist) {
		return nil, fmt.Errorf("make directory of the network: %w", err)
	}
	w := &Network{networks: ws, place: p, grant: p.Grant}
	if err := errors.Join(w.writeFiles(), w.prepare(ws.ctx)); err != nil {
		return nil, fmt.Errorf("make network: %w", err)
	}
	ours, theirs, err := netstack.Pair()
	if err != nil {
		return nil, err
	}
	if err := ws.start(w, ours); err != nil {
		return nil, errors.Join(err, ours.Close(), theirs.Close())
	}
	w.guest = theirs
	if w.far, err = w.link.Duplicate(); err != nil {
		return nil, errors.Join(err, theirs.Close(), w.Close())
	}
	if ws.opts.Store != nil {
		// Beside the engine's work, for the first one starts a process.
		w.parked = make(chan error, 1)
		w.pending.Go(func() { w.parked <- ws.park(ctx, w) })
	}
	return w, nil
}

// park gives the fd store a duplicate of a link.
func (ws *Networks) park(ctx context.Context, w *Network) error {
	dup, err := w.link.Duplicate()
	if err != nil {
		return err
	}
	defer dup.Close()
	return ws.opts.Store.Put(ctx, w.place.ID, dup)
}

// ParkAgain gives a new fd store the links that one had which has died.
func (ws *Networks) ParkAgain() {
	ws.mu.Lock()
	open := slices.Collect(maps.Values(ws.open))
	ws.mu.Unlock()
	given := 0
	for _, w := range open {
		w.mu.Lock()
		closed := w.closed
		if !closed {
			w.pending.Add(1)
		}
		w.mu.Unlock()
		if closed {
			continue
		}
		err := ws.park(ws.ctx, w)
		w.pending.Done()
		if err != nil {
			ws.log.Error("give a link to the holder; a sandbox loses its network with this daemon", "sandbox", w.place.ID, "error", err)
			continue
		}
		given++
	}
	if given > 0 {
		ws.log.Warn("the holder of network links has died; another has the links now", "links", given)
	}
}

// ErrLost says that no process has the link of a sandbox any more.
var ErrLost = errors.New("no process holds the link")

// Adopt takes back the network of a sandbox that an earlier daemon made: what was an
// address of a name is that again. ErrLost is for one whose link is gone; it cannot
// be made again as long as the sandbox lives.
func (ws *Networks) Adopt(ctx context.Context, p Place) (*Network, error) {
	if ws.opts.Store == nil {
		return nil, ErrLost
	}
	w := &Network{networks: ws, place: p, grant: p.Grant}
	if err := w.prepare(ws.ctx); err != nil {
		return nil, fmt.Errorf("recover network: %w", err)
	}
	ours, err := ws.opts.Store.Take(ctx, p.ID)
	if errors.Is(err, fdstore.ErrNone) {
		return nil, ErrLost
	}
	if err != nil {
		return nil, fmt.Errorf("recover network: %w", err)
	}
	if err := ws.start(w, ours); err != nil {
		return nil, errors.Join(err, ours.Close())
	}
	return w, nil
}

// start begins to serve a link; the first one starts what all of them need.
func (ws *Networks) start(w *Network, ours *os.File) error {
	ws.mu.Lock()
	defer ws.mu.Unlock()
	if ws.closed {
		return api.Errorf(api.CodeUnavailable, "the daemon is shutting down")
	}
	if ws.gateway == nil {
		gateway, err := netstack.New(ws.ctx, netstack.Options{Log: ws.log})
		if err != nil {
			return err
		}
		ws.gateway, ws.queue = gateway, make(chan entry, maxQueue)
		ws.wg.Go(ws.write)
	}
	var err error
	if w.link, err = ws.gateway.Open(ours, w.gate, netstack.NewJournal(filepath.Join(w.place.Dir, flowsFile))); err != nil {
		return err
	}
	ws.open[w.place.ID] = w
	w.mu.Lock()
	defer w.mu.Unlock()
	w.schedule()
	return nil
}

// dialer opens the real connections of a sandbox.
func (ws *Networks) dialer(g policy.EgressGrant) *upstream.Dialer {
	d := &upstream.Dialer{}
	if len(g.Hosts) > 0 {
		d.Hosts = make(map[rule.Name][]netip.Addr, len(g.Hosts))
		for name, addrs := range g.Hosts {
			d.Hosts[rule.Name(name)] = addrs
		}
	}
	if u := g.Upstream; u != nil {
		d.Proxy = &upstream.Proxy{Address: u.Address, Except: u.Except, ExceptAddrs: u.ExceptAddrs}
		if u.TLS {
			host, _, err := net.SplitHostPort(u.Address)
			if err != nil {
				host = u.Address
			}
			d.Proxy.TLS = &tls.Config{ServerName: host, MinVersion: tls.VersionTLS12}
		}
	}
	return d
}

// write writes records until the queue is closed.
func (ws *Networks) write() {
	for e := range ws.queue {
		if e.reached != nil {
			close(e.reached)
			e.network.pending.Done()
			continue
		}
		e.network.write(e.rec)
	}
}

func (ws *Networks) forget(w *Network) {
	ws.mu.Lock()
	defer ws.mu.Unlock()
	delete(ws.open, w.place.ID)
}

// unpark takes the duplicate of a link back from the fd store.
func (ws *Networks) unpark(w *Network) error {
	if ws.opts.Store == nil {
		return nil
	}
	return ws.opts.Store.Drop(ws.ctx, w.place.ID)
}

// Sweep has the fd store let go of the links of all sandboxes but those in keep.
func (ws *Networks) Sweep(ctx context.Context, keep []string) error {
	if ws.opts.Store == nil {
		return nil
	}
	return ws.opts.Store.Keep(ctx, keep)
}

// Close leaves all networks that are open to the fd store, and ends what served them.
func (ws *Networks) Close() error {
	ws.mu.Lock()
	was, gateway := ws.closed, ws.gateway
	ws.closed = true
	open := slices.Collect(maps.Values(ws.open))
	ws.mu.Unlock()
	if was {
		return nil
	}
	var errs []error
	for _, w := range open {
		errs = append(errs, w.Leave())
	}
	if gateway != nil {
		errs = append(errs, gateway.Close())
		close(ws.queue)
		ws.wg.Wait()
	}
	if ws.opts.Store != nil {
		errs = append(errs, ws.opts.Store.Close())
	}
	return errors.Join(errs...)
}
