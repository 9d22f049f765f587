//go:build linux && !remoteonly

package network

import (
	"context"
	"net/netip"
	"sync"
	"time"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/egress"
	"github.com/cloche-dev/cloche/internal/secret"
)

// observer is a Network as its gate sees it.
type observer Network

// Opened implements egress.Observer.
func (o *observer) Opened(f egress.Flow) {
	rec := flowRecord(f)
	rec.Kind, rec.Time = api.EgressOpened, f.Started
	(*Network)(o).note(rec)
}

// Closed implements egress.Observer.
func (o *observer) Closed(f egress.Flow) {
	rec := flowRecord(f)
	rec.Kind, rec.Time, rec.Reason = api.EgressClosed, f.Ended, f.Reason
	rec.BytesOut, rec.BytesIn, rec.DurationMS = f.BytesOut, f.BytesIn, f.Ended.Sub(f.Started).Milliseconds()
	(*Network)(o).note(rec)
}

// flowRecord is what opening and closing have in common.
func flowRecord(f egress.Flow) api.EgressRecord {
	rec := api.EgressRecord{
		Flow: f.ID, Name: string(f.Name), Port: int(f.Port), ResolvedBy: string(f.ResolvedBy), Rule: f.Rule, Protocol: string(f.Protocol),
	}
	if f.Addr.IsValid() {
		rec.Addr = f.Addr.String()
		if rec.Name == "" {
			rec.Name = rec.Addr
		}
	}
	return rec
}

// Refused implements egress.Observer.
func (o *observer) Refused(r egress.Refused) {
	w := (*Network)(o)
	ref := api.EgressRefusal{
		Time: r.Time, Name: shown(r.Name, r.Addr), Port: int(r.Port), Rule: r.Rule, Reason: r.Reason, Allow: r.Allow, Hint: w.hint(r.Allow),
		Method: r.Method, Path: r.Target, Suppressed: r.Suppressed,
	}
	ref = secret.In(w.networks.opts.Redact, ref)
	again, suppressed := w.seen.add(ref)
	if again {
		return
	}
	w.note(api.EgressRecord{
		Kind: api.EgressRefused, Time: ref.Time, Name: ref.Name, Port: ref.Port, Rule: ref.Rule, Reason: ref.Reason, Hint: ref.Hint,
		Allow: ref.Allow, Method: ref.Method, Path: ref.Path, Suppressed: suppressed,
	})
}

func shown(name string, addr netip.Addr) string {
	if name == "" && addr.IsValid() {
		return addr.String()
	}
	return name
}

// note puts a record into the queue. It waits when many are there: what leaves is
// never faster than what is written down of it.
func (w *Network) note(rec api.EgressRecord) {
	rec = secret.In(w.networks.opts.Redact, rec)
	rec.Time = rec.Time.UTC()
	w.pending.Add(1)
	w.networks.queue <- entry{network: w, rec: rec}
}

// write puts a record into the log and tells of it. It is called by one goroutine.
func (w *Network) write(rec api.EgressRecord) {
	defer w.pending.Done()
	rec, err := w.log.Append(rec)
	if err != nil {
		w.networks.log.Error("write egress log", "sandbox", w.place.ID, "error", err)
	}
	if rec.Kind == api.EgressClosed {
		w.saveUsedSometimes()
	}
	if w.place.Tell != nil {
		w.place.Tell(rec)
	}
}

// begin counts an entry in that is about to be queued, unless the network is closed.
func (w *Network) begin() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if !w.closed {
		w.pending.Add(1)
	}
	return !w.closed
}

// Record adds a record of another component to the log, and returns
// when it is in the queue. The network must be open.
func (w *Network) Record(rec api.EgressRecord) {
	if !w.begin() {
		return
	}
	rec.Time = time.Now().UTC()
	w.networks.queue <- entry{network: w, rec: rec}
}

// ReadLog is Read of the log, with everything in it that had happened before the call:
// it waits first until what is in the queue is written.
func (w *Network) ReadLog(ctx context.Context, o api.EgressLogOptions, fn func(api.EgressRecord) error) error {
	if w.begin() {
		mark := entry{network: w, reached: make(chan struct{})}
		select {
		case w.networks.queue <- mark:
		case <-ctx.Done():
			w.pending.Done()
			return ctx.Err()
		}
		select {
		case <-mark.reached:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return w.log.Read(ctx, o, fn)
}

const (
	// maxSeen is how many refusals are remembered for those who ask what was refused
	// while they ran something, and maxTold how many they are told.
	maxSeen = 256
	maxTold = 100
	// sameAgain is how long the same refusal is not told again: programs ask for both
	// families of addresses, and twice.
	sameAgain = time.Second
)

// refusals are the latest refusals of one sandbox.
type refusals struct {
	mu    sync.Mutex
	list  []api.EgressRefusal // the latest; list[i] has the number first+i
	first int64
	told  map[refusalKey]time.Time
	// again counts those that were not told because they were the same.
	again int64
}

// refusalKey is what makes two refusals the same.
type refusalKey struct {
	name         string
	port         int
	rule         string
	method, path string
}

func keyOf(r api.EgressRefusal) refusalKey {
	return refusalKey{r.Name, r.Port, r.Rule, r.Method, r.Path}
}

// add remembers a refusal. It reports whether the same was told a moment ago, and
// otherwise how many were not told since the last that was.
func (s *refusals) add(r api.EgressRefusal) (again bool, suppressed int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.list) == maxSeen {
		s.list = append(s.list[:0], s.list[1:]...)
		s.first++
	}
	s.list = append(s.list, r)
	key := keyOf(r)
	if at, ok := s.told[key]; ok && r.Time.Sub(at) < sameAgain {
		s.again += 1 + r.Suppressed
		return true, 0
	}
	if s.told == nil || len(s.told) >= maxSeen {
		s.told = map[refusalKey]time.Time{}
	}
	s.told[key] = r.Time
	suppressed = s.again + r.Suppressed
	s.again = 0
	return false, suppressed
}

func (s *refusals) mark() int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.first + int64(len(s.list))
}

// since lists what came after a mark, each refusal once: the first of its kind, with
// how many more there were of it and before it.
func (s *refusals) since(mark int64) []api.EgressRefusal {
	s.mu.Lock()
	defer s.mu.Unlock()
	var out []api.EgressRefusal
	at := map[refusalKey]int{}
	for _, r := range s.list[min(max(mark-s.first, 0), int64(len(s.list))):] {
		i, known := at[keyOf(r)]
		switch {
		case known:
			out[i].Suppressed += r.Suppressed
		case len(out) < maxTold:
			at[keyOf(r)] = len(out)
			out = append(out, r)
		default:
			out[maxTold-1].Suppressed += 1 + r.Suppressed
		}
	}
	return out
}
