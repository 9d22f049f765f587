//go:build linux && !remoteonly

package network

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"sync"
	"time"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/egress"
	"github.com/cloche-dev/cloche/internal/egress/intercept"
	"github.com/cloche-dev/cloche/internal/egress/netstack"
	"github.com/cloche-dev/cloche/internal/egress/resolver"
	"github.com/cloche-dev/cloche/internal/egress/rule"
	"github.com/cloche-dev/cloche/internal/engine"
	"github.com/cloche-dev/cloche/internal/policy"
)

// Place says whose network it is and where it keeps what outlives this process.
type Place struct {
	// ID and Name are the sandbox's; Hostname is what it calls itself.
	ID, Name, Hostname string
	// Dir is the network's own, 0700, and made when it is missing. The maker of the Place
	// removes it with the sandbox.
	Dir string
	// Grant is what may leave.
	Grant policy.EgressGrant
	// Secrets are those that the sandbox has placeholders of, and Value reads one.
	Secrets []intercept.Secret
	Value   func(ctx context.Context, name string) (string, error)
	// Opens: the sandbox's programs are to trust the authority that opens TLS from the beginning,
	// because later rules will have it opened.
	Opens bool
	// Ask waits for a decision about a connection that no rule covers, where Grant says
	// so, and reports whether it is allowed; nil refuses it.
	Ask func(context.Context, egress.Asked) bool
	// Tell is told of each record when it was written, of all networks by one goroutine.
	// It may be nil.
	Tell func(api.EgressRecord)
}

// Network is the network of one sandbox. It is safe for concurrent use.
type Network struct {
	networks *Networks
	place    Place
	gate     *egress.Gate
	link     *netstack.Link
	log      *Log
	// guest is the sandbox's end, and far a duplicate of the link's; both are for the
	// engine, until Handed.
	guest, far *os.File
	// parked is what became of giving the fd store a duplicate.
	parked chan error
	seen   refusals
	// pending counts the records that are not written yet.
	pending sync.WaitGroup

	mu sync.Mutex
	// authority signs for the hosts whose TLS is opened; nil opens none.
	authority *intercept.Authority
	grant     policy.EgressGrant
	ends      *time.Timer // of the next temporary rule
	closed    bool
	used      egress.Usage // as it was last written, and when
	saved     time.Time
}

// The names of the files in a network's directory.
const (
	namesFile  = "names"
	resolvFile = "resolv.conf"
	hostsFile  = "hosts"
	usedFile   = "used.json"
	flowsFile  = "flows"
)

// prepare makes the gate, over what the directory holds of an earlier life.
func (w *Network) prepare(ctx context.Context) error {
	store, entries, err := resolver.OpenFile(filepath.Join(w.place.Dir, namesFile))
	if err != nil {
		return err
	}
	table, err := resolver.NewTable(redactedNames{store, w.networks.opts.Redact}, entries)
	if err != nil {
		return err
	}
	rules, err := w.rules(w.place.Grant)
	if err != nil {
		return err
	}
	if w.log, err = OpenLog(w.place.Dir); err != nil {
		return err
	}
	opened, err := w.intercept(w.place.Grant)
	if err != nil {
		return err
	}
	w.used = readUsed(w.place.Dir)
	w.gate = egress.New(ctx, egress.Options{
		Rules: rules, Table: table, Upstream: w.networks.dialer(w.place.Grant), Observer: (*observer)(w), Intercept: opened, Own: w.networks.opts.Own, Ask: w.place.Ask,
		Used: w.used,
	})
	w.bound(w.place.Grant)
	return nil
}

// rules compiles what a grant allows now.
func (w *Network) rules(g policy.EgressGrant) (*rule.Set, error) {
	set, err := rule.Compile(g.RulesAt(time.Now()))
	if err != nil {
		return nil, fmt.Errorf("compile egress rules: %w", err)
	}
	return set, nil
}

// writeFiles writes what the sandbox reads of its network.
func (w *Network) writeFiles() error {
	root, err := os.OpenRoot(w.place.Dir)
	if err != nil {
		return err
	}
	defer root.Close()
	plan := netstack.DefaultPlan()
	hosts := "127.0.0.1\tlocalhost\n::1\tlocalhost ip6-localhost ip6-loopback\n"
	if w.place.Hostname != "" {
		hosts += plan.Guest.Addr().String() + "\t" + w.place.Hostname + "\n"
	}
	for name, text := range map[string]string{resolvFile: "nameserver " + plan.Gateway.String() + "\n", hostsFile: hosts} {
		// Inside it is everybody's to read.
		if err := errors.Join(root.WriteFile(name, []byte(text), 0o644), root.Chmod(name, 0o644)); err != nil {
			return err
		}
	}
	return nil
}

// Mounts are the files of the sandbox's /etc that speak of its network. They are
// mounts so that a read-only root has them too, and a snapshot of the root has not.
func (w *Network) Mounts() []engine.Mount {
	at := func(name string) engine.Mount {
		return engine.Mount{Source: filepath.Join(w.place.Dir, name), Target: "/etc/" + name, ReadOnly: true, Static: true}
	}
	return []engine.Mount{at(resolvFile), at(hostsFile)}
}

// Link is what the engine is given. It is valid until Handed.
func (w *Network) Link() *engine.Link {
	plan := netstack.DefaultPlan()
	return &engine.Link{
		Guest: w.guest, Far: w.far, Address: plan.Guest, Gateway: plan.Gateway,
		MAC: plan.GuestMAC, GatewayMAC: plan.GatewayMAC, MTU: plan.MTU,
	}
}

// Handed is called once, when the engine has the link or will never have it. It
// returns when the fd store has its duplicate.
func (w *Network) Handed(ctx context.Context) error {
	w.mu.Lock()
	guest, far := w.guest, w.far
	w.guest, w.far = nil, nil
	w.mu.Unlock()
	var err error
	if guest != nil {
		err = errors.Join(guest.Close(), far.Close())
	}
	if w.parked == nil {
		return err
	}
	select {
	case perr := <-w.parked:
		w.parked <- perr // for the next caller
		return errors.Join(err, perr)
	case <-ctx.Done():
		return errors.Join(err, ctx.Err())
	}
}

// Grant is what may leave. What has ended by itself may still be in it.
func (w *Network) Grant() policy.EgressGrant {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.grant
}

// SetGrant puts other rules in force. Flows in progress are judged again: those that
// the new rules do not allow are being reset when it returns; see Settle.
func (w *Network) SetGrant(g policy.EgressGrant) error {
	set, err := w.rules(g)
	if err != nil {
		return err
	}
	w.mu.Lock()
	old := w.grant
	w.grant = g
	w.schedule()
	w.mu.Unlock()
	if !reflect.DeepEqual(old.Hosts, g.Hosts) || !reflect.DeepEqual(old.Upstream, g.Upstream) {
		w.gate.SetUpstream(w.networks.dialer(g))
	}
	w.bound(g)
	w.gate.SetRules(set)
	if reflect.DeepEqual(old.Requests, g.Requests) && reflect.DeepEqual(old.Demanded, g.Demanded) {
		return nil
	}
	opened, err := w.intercept(g)
	if err != nil {
		w.gate.SetRules(nil) // to let nothing out is never wrong
		return err
	}
	w.gate.SetIntercept(opened)
	return nil
}

// bound puts in force what a grant says beside its rules.
func (w *Network) bound(g policy.EgressGrant) {
	most := g.Budget()
	w.gate.SetBudget(egress.Usage{Connections: most.Connections, BytesOut: most.BytesOut, BytesIn: most.BytesIn})
	w.gate.SetAsk(g.Ask)
}

// Settle returns when the flows that SetGrant had reset are gone, or with ctx. What is
// let out then is what the rules in force allow, and nothing else.
func (w *Network) Settle(ctx context.Context) error { return w.gate.Settle(ctx) }

// schedule sets the timer for the end of the next temporary rule. The caller holds
// w.mu.
func (w *Network) schedule() {
	w.unschedule()
	now := time.Now()
	at, ok := w.grant.NextEnd(now)
	if !ok || w.closed {
		return
	}
	w.pending.Add(1)
	var t *time.Timer
	begun := make(chan struct{})
	t = time.AfterFunc(at.Sub(now), func() {
		defer w.pending.Done()
		<-begun
		w.mu.Lock()
		mine := w.ends == t && !w.closed
		if mine {
			w.ends = nil
			// By the timer, which counts by a clock that is never set: a rule that has
			// ended does not hold again because the machine's was set back.
			w.grant.Temporary = slices.DeleteFunc(slices.Clone(w.grant.Temporary), func(r policy.TemporaryRule) bool { return !r.ExpiresAt.After(at) })
		}
		g := w.grant
		w.mu.Unlock()
		if mine {
			w.ended(g)
		}
	})
	w.ends = t
	close(begun)
}

// unschedule stops the timer. The caller holds w.mu.
func (w *Network) unschedule() {
	if w.ends != nil && w.ends.Stop() {
		w.pending.Done() // it will not do so itself any more
	}
	w.ends = nil
}

// ended puts in force what is left when a temporary rule has ended.
func (w *Network) ended(g policy.EgressGrant) {
	set, err := w.rules(g)
	if err != nil {
		// They were compiled before. To let nothing out is never wrong.
		w.networks.log.Error("egress rules", "sandbox", w.place.ID, "error", err)
	}
	w.gate.SetRules(set)
	w.note(api.EgressRecord{Kind: api.EgressChanged, Time: time.Now(), Reason: "a rule that was for a while has ended"})
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.ends == nil {
		w.schedule()
	}
}

// Used is what the sandbox has used of its limits.
func (w *Network) Used() api.EgressLimits {
	u := w.gate.Usage()
	return api.EgressLimits{Connections: u.Connections, BytesOut: u.BytesOut, BytesIn: u.BytesIn}
}

// Mark is a point in time for Since.
func (w *Network) Mark() int64 { return w.seen.mark() }

// Since are the refusals since a mark, oldest first, each once and not too many.
func (w *Network) Since(mark int64) []api.EgressRefusal { return w.seen.since(mark) }

// Leave ends this process's part in the network, and leaves its link to the fd store: the
// sandbox's packets wait there for the next daemon, up to the size of its buffer.
func (w *Network) Leave() error { return w.close(false) }

// Close ends the network and waits for all that goes on in it. It is idempotent. What
// its directory holds stays.
func (w *Network) Close() error { return w.close(true) }

func (w *Network) close(drop bool) error {
	w.mu.Lock()
	was := w.closed
	w.closed = true
	w.unschedule()
	guest, far := w.guest, w.far
	w.guest, w.far = nil, nil
	w.mu.Unlock()
	if was {
		return nil
	}
	var errs []error
	if guest != nil {
		errs = append(errs, guest.Close(), far.Close())
	}
	if w.link != nil {
		errs = append(errs, w.link.Close())
	}
	w.pending.Wait()
	w.saveUsed()
	w.log.Close()
	w.networks.forget(w)
	if drop {
		errs = append(errs, w.networks.unpark(w))
	}
	return errors.Join(errs...)
}

// hint says how to allow it.
func (w *Network) hint(allow string) string {
	if allow == "" {
		return ""
	}
	return fmt.Sprintf("to allow it: cloche egress allow %s %q", cmp.Or(w.place.Name, w.place.ID), allow)
}
