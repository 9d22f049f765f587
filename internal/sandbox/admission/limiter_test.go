package admission

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/policy"
)

func quiet() {}

// So many are inside as may be, and the others come in their turn: first come first
// served, tenant by tenant.
func TestLimiterServesTenantsInTurn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := New(policy.Admission{Starting: 1, Queued: 100})
		leave, err := g.Enter(t.Context(), "a", quiet)
		if err != nil {
			t.Fatal(err)
		}
		var mu sync.Mutex
		var order []string
		var wg sync.WaitGroup
		for _, who := range []string{"a1", "a2", "a3", "b1", "c1"} {
			waits := make(chan struct{})
			wg.Go(func() {
				leave, err := g.Enter(t.Context(), who[:1], func() { close(waits) })
				if err != nil {
					t.Error(err)
					return
				}
				mu.Lock()
				order = append(order, who)
				mu.Unlock()
				time.Sleep(time.Second)
				leave()
				leave() // again is nothing
			})
			<-waits
		}
		leave()
		wg.Wait()
		if want := []string{"a1", "b1", "c1", "a2", "a3"}; !slices.Equal(order, want) {
			t.Errorf("served %v, want %v", order, want)
		}
		if g.running != 0 || g.queued != 0 || len(g.queues) != 0 || len(g.turns) != 0 {
			t.Errorf("left: %d inside, %d queued, %v, %v", g.running, g.queued, g.queues, g.turns)
		}
	})
}

// A full queue refuses at once and says when to retry; one tenant fills half of it.
func TestLimiterThatIsFull(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := New(policy.Admission{Starting: 1, Queued: 4})
		ctx, cancel := context.WithCancel(t.Context())
		leave, err := g.Enter(ctx, "a", quiet)
		if err != nil {
			t.Fatal(err)
		}
		var wg sync.WaitGroup
		for range 2 {
			wg.Go(func() {
				if leave, err := g.Enter(ctx, "a", quiet); err == nil {
					leave()
				}
			})
		}
		synctest.Wait()
		refused := func(tenant string) {
			t.Helper()
			_, err := g.Enter(ctx, tenant, quiet)
			e, ok := errors.AsType[*api.Error](err)
			if !ok || e.Code != api.CodeTooMany || !e.Retryable || e.RetryAfterMS < 1000 || e.Judge() != api.ClassLimit {
				t.Errorf("with a full queue: %+v, want too_many with when to come again", err)
			}
		}
		refused("a")
		for range 2 {
			wg.Go(func() {
				if leave, err := g.Enter(ctx, "b", quiet); err == nil {
					leave()
				}
			})
		}
		synctest.Wait()
		refused("b")
		refused("c")
		cancel() // those who wait leave
		wg.Wait()
		leave()
		if g.running != 0 || g.queued != 0 || len(g.queues) != 0 || len(g.turns) != 0 {
			t.Errorf("left: %d inside, %d queued, %v, %v", g.running, g.queued, g.queues, g.turns)
		}
		if leave, err := g.Enter(t.Context(), "c", quiet); err != nil {
			t.Error(err)
		} else {
			leave()
		}
	})
}

// No creation waits indefinitely, and creations that begin and end at random leave nothing behind.
func TestLimiterIsLeftAsItWas(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := New(policy.Admission{Starting: 3, Queued: 1000})
		var wg sync.WaitGroup
		var mu sync.Mutex
		inside, most := 0, 0
		for i := range 300 {
			wg.Go(func() {
				ctx, cancel := context.WithTimeout(t.Context(), time.Duration(i%17)*300*time.Millisecond)
				defer cancel()
				leave, err := g.Enter(ctx, fmt.Sprint(i%5), quiet)
				if err != nil {
					return
				}
				mu.Lock()
				inside++
				most = max(most, inside)
				mu.Unlock()
				time.Sleep(time.Duration(i%7+1) * 100 * time.Millisecond)
				mu.Lock()
				inside--
				mu.Unlock()
				leave()
			})
		}
		wg.Wait()
		if most != 3 || g.running != 0 || g.queued != 0 || len(g.queues) != 0 || len(g.turns) != 0 {
			t.Errorf("%d at once; left: %d inside, %d queued, %v, %v", most, g.running, g.queued, g.queues, g.turns)
		}
		leave, _ := g.Enter(t.Context(), "a", quiet)
		for range 2 {
			if _, err := g.Enter(t.Context(), "a", quiet); err != nil {
				t.Fatal(err)
			}
		}
		if _, err := g.Enter(t.Context(), "a", quiet); api.CodeOf(err) != api.CodeNoCapacity {
			t.Errorf("after %s: %v", maxQueueTime, err)
		}
		leave()
	})
}
