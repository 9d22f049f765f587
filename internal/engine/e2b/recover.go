package e2b

import (
	"context"
	"errors"
	"net/http"
	"slices"
	"sync"
	"time"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/engine"
)

// sweepTimeout bounds a Sweep, for which a daemon waits when it starts.
const sweepTimeout = 20 * time.Second

// sweepAtOnce is how many sandboxes a Sweep removes at the same time.
const sweepAtOnce = 8

// Recover implements engine.Engine. A service that does not answer is api.CodeUnavailable: the state of
// the sandbox is not known then.
func (e *Engine) Recover(ctx context.Context, state []byte) (engine.Instance, error) {
	rec, err := parseRecord(state)
	if err != nil {
		return nil, api.Errorf(api.CodeNotFound, "recover sandbox: %w", err)
	}
	what := "recover sandbox " + rec.ID
	if e.problem != nil {
		return nil, api.Errorf(api.CodeUnavailable, "%s: %s", what, e.problem.What).WithHint("%s", e.problem.Mend)
	}
	if rec.API != e.service.api.String() {
		return nil, api.Errorf(api.CodeUnavailable, "%s: it is at another service than the settings name", what).
			WithHint("set e2b.api_url to the service of the sandbox")
	}
	d, err := e.service.get(ctx, rec.Sandbox)
	switch {
	case hasStatus(err, http.StatusNotFound):
		return nil, api.Errorf(api.CodeNotFound, "%s: it is dead", what)
	case err != nil:
		return nil, classify(ctx, what, err)
	case !has(d.Metadata, map[string]string{metaOwner: rec.Owner, metaID: rec.ID}):
		return nil, api.Errorf(api.CodeNotFound, "%s: it is dead", what) // another one has its ID
	}
	v, err := e.service.envdOf(d.created)
	if err != nil {
		return nil, classify(ctx, what, err)
	}
	i := e.newInstance(rec, v)
	i.state = slices.Clone(state)
	i.begin(nil)
	return i, nil
}

// Sweep implements engine.Engine. A service that cannot be reached has nothing that this call could
// remove: the sandboxes there end with their lifetime.
func (e *Engine) Sweep(ctx context.Context, owner string, keep func(id string) bool) error {
	if !engine.SafeName(owner) {
		return api.Errorf(api.CodeInternal, "sweep: no owner")
	}
	if e.problem != nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, sweepTimeout)
	defer cancel()
	err := e.sweep(ctx, map[string]string{metaOwner: owner}, keep)
	if known, ok := errors.AsType[*api.Error](err); ok && known.Retryable {
		e.log.Warn("the service was not swept; what is there ends with its lifetime", "error", err)
		return nil
	}
	return err
}

// sweep removes the sandboxes whose metadata has these values and for whose ID keep returns false.
func (e *Engine) sweep(ctx context.Context, meta map[string]string, keep func(id string) bool) error {
	all, err := e.service.list(ctx, meta)
	if err != nil {
		return classify(ctx, "sweep", err)
	}
	var mu sync.Mutex
	var errs []error
	var wg sync.WaitGroup
	slots := make(chan struct{}, sweepAtOnce)
	for _, d := range all {
		id := d.Metadata[metaID]
		if id == "" || engine.Keeps(keep, id) {
			continue
		}
		slots <- struct{}{}
		wg.Go(func() {
			defer func() { <-slots }()
			if err := e.service.remove(ctx, d.SandboxID); err != nil {
				mu.Lock()
				defer mu.Unlock()
				errs = append(errs, classify(ctx, "sweep", err))
			}
		})
	}
	wg.Wait()
	return errors.Join(errs...)
}
