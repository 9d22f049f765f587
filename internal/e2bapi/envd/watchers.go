package envd

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"connectrpc.com/connect"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/envdpb"
)

const (
	// maxWatchers bounds the watchers of one sandbox.
	maxWatchers = 64
	// maxPending bounds the events of one watcher that its client has not fetched.
	maxPending = 10_000
	// watcherIdle is after how long a watcher whose events are not fetched ends.
	watcherIdle = time.Hour
)

// watcher keeps the changes of a directory until a client fetches them.
type watcher struct {
	cancel context.CancelFunc
	idle   *time.Timer

	mu     sync.Mutex // guards what follows
	events []*envdpb.FilesystemEvent
	failed error // why there will be no more
}

// watcherTable has the watchers of all sandboxes.
type watcherTable struct {
	wg     sync.WaitGroup
	mu     sync.Mutex // guards what follows
	closed bool
	byRef  map[string]map[string]*watcher
}

func newWatcherTable() *watcherTable {
	return &watcherTable{byRef: map[string]map[string]*watcher{}}
}

// close ends all watchers and waits for them.
func (t *watcherTable) close() {
	t.mu.Lock()
	t.closed = true
	for ref := range t.byRef {
		t.drop(ref)
	}
	t.mu.Unlock()
	t.wg.Wait()
}

// forget ends the watchers of a sandbox.
func (t *watcherTable) forget(ref string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.drop(ref)
}

// drop ends the watchers of a sandbox. The caller holds mu.
func (t *watcherTable) drop(ref string) {
	for _, w := range t.byRef[ref] {
		w.end()
	}
	delete(t.byRef, ref)
}

func (w *watcher) end() {
	w.idle.Stop()
	w.cancel()
}

// add registers a watcher and runs it.
func (t *watcherTable) add(ref, id string, w *watcher, run func()) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.closed || len(t.byRef[ref]) >= maxWatchers {
		return connect.NewError(connect.CodeResourceExhausted, fmt.Errorf("the sandbox has %d watchers, which is the most", maxWatchers))
	}
	if t.byRef[ref] == nil {
		t.byRef[ref] = map[string]*watcher{}
	}
	t.byRef[ref][id] = w
	w.idle = time.AfterFunc(watcherIdle, func() { t.remove(ref, id) })
	t.wg.Go(run)
	return nil
}

// remove ends one watcher; false if it does not exist.
func (t *watcherTable) remove(ref, id string) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	w := t.byRef[ref][id]
	if w == nil {
		return false
	}
	w.end()
	delete(t.byRef[ref], id)
	if len(t.byRef[ref]) == 0 {
		delete(t.byRef, ref)
	}
	return true
}

func (t *watcherTable) get(ref, id string) *watcher {
	t.mu.Lock()
	defer t.mu.Unlock()
	w := t.byRef[ref][id]
	if w != nil {
		w.idle.Reset(watcherIdle)
	}
	return w
}

// put keeps one event. Too many end the watch: a client must not take a part for the whole.
func (w *watcher) put(ev *envdpb.FilesystemEvent) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.events) >= maxPending {
		w.events = nil
		return connect.NewError(connect.CodeDataLoss, fmt.Errorf("more than %d changes were not fetched: list the directory and watch it again", maxPending))
	}
	w.events = append(w.events, ev)
	return nil
}

// fetch takes all events, or says why there are no more.
func (w *watcher) fetch() ([]*envdpb.FilesystemEvent, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if events := w.events; len(events) > 0 || w.failed == nil || errors.Is(w.failed, errWatchGone) {
		w.events = nil
		return events, nil
	}
	return nil, rpcError(w.failed)
}

// CreateWatcher implements the service. The watcher outlives the call.
func (f *filesystemService) CreateWatcher(ctx context.Context, req *connect.Request[envdpb.CreateWatcherRequest]) (*connect.Response[envdpb.CreateWatcherResponse], error) {
	dir, err := f.watched(ctx, req, req.Msg)
	if err != nil {
		return nil, err
	}
	live, cancel := context.WithCancel(context.WithoutCancel(ctx))
	w := &watcher{cancel: cancel}
	ref, id := requestOf(ctx).sb.Ref, api.NewID("w")
	ready := make(chan error, 2)
	err = f.s.watchers.add(ref, id, w, func() {
		err := dir.run(live, func() error { ready <- nil; return nil }, w.put)
		w.mu.Lock()
		w.failed = err
		w.mu.Unlock()
		ready <- err
	})
	if err != nil {
		cancel()
		return nil, err
	}
	select {
	case err = <-ready:
	case <-ctx.Done():
		err = ctx.Err()
	}
	if err != nil {
		f.s.watchers.remove(ref, id)
		return nil, fileError(dir.at.Path, err)
	}
	return connect.NewResponse(&envdpb.CreateWatcherResponse{WatcherId: id}), nil
}

// GetWatcherEvents implements the service.
func (f *filesystemService) GetWatcherEvents(ctx context.Context, req *connect.Request[envdpb.GetWatcherEventsRequest]) (*connect.Response[envdpb.GetWatcherEventsResponse], error) {
	w := f.s.watchers.get(requestOf(ctx).sb.Ref, req.Msg.GetWatcherId())
	if w == nil {
		return nil, noWatcher(req.Msg.GetWatcherId())
	}
	events, err := w.fetch()
	if err != nil {
		return nil, err
	}
	return connect.NewResponse(&envdpb.GetWatcherEventsResponse{Events: events}), nil
}

// RemoveWatcher implements the service.
func (f *filesystemService) RemoveWatcher(ctx context.Context, req *connect.Request[envdpb.RemoveWatcherRequest]) (*connect.Response[envdpb.RemoveWatcherResponse], error) {
	if !f.s.watchers.remove(requestOf(ctx).sb.Ref, req.Msg.GetWatcherId()) {
		return nil, noWatcher(req.Msg.GetWatcherId())
	}
	return connect.NewResponse(&envdpb.RemoveWatcherResponse{}), nil
}

func noWatcher(id string) *connect.Error {
	return connect.NewError(connect.CodeNotFound, fmt.Errorf("watcher with id %.100s not found", id))
}
