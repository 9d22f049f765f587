package approval_test

import (
	"context"
	"slices"
	"strconv"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/approval"
)

func everything(api.Approval) bool { return true }

func ask(name string) approval.Question {
	return approval.Question{Tenant: "red", Sandbox: "sb-1", SandboxName: "box", Name: name, Port: 443, Rule: name}
}

// watch collects what a Queue tells.
type watch struct {
	mu   sync.Mutex
	told []string
}

func (w *watch) notify(a api.Approval) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.told = append(w.told, a.Name+" "+string(a.State))
}

func TestAnswers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var w watch
		q := approval.New(w.notify)
		out := make(chan bool)
		for range 2 {
			go func() { out <- q.Ask(t.Context(), ask("a.org")) }()
		}
		synctest.Wait()
		list := q.List(false, everything)
		if len(list) != 1 || list[0].Asked != 2 || list[0].State != api.ApprovalPending || list[0].ExpiresAt.Sub(list[0].AskedAt) != approval.Pending {
			t.Fatalf("waiting: %+v", list)
		}
		a, ok := q.Answer(list[0].ID, true, "me")
		if !ok || a.AnsweredBy != "me" || a.AnsweredAt == nil || !<-out || !<-out {
			t.Fatalf("approved: %+v", a)
		}
		if _, ok := q.Answer(a.ID, false, "you"); ok {
			t.Error("a second word counts")
		}
		// A yes does not count indefinitely: its rule may have ended.
		go func() { out <- q.Ask(t.Context(), ask("a.org")) }()
		synctest.Wait()
		again := q.List(false, everything)
		if len(again) != 1 || again[0].ID == a.ID {
			t.Fatalf("asked again: %+v", again)
		}
		q.Answer(again[0].ID, false, "me")
		if <-out {
			t.Error("a no lets out")
		}
		// A no counts for a while, and is not asked again.
		if q.Ask(t.Context(), ask("a.org")) || len(q.List(false, everything)) != 0 {
			t.Error("a no does not count")
		}
		time.Sleep(approval.Remembered)
		if len(q.List(true, everything)) != 0 {
			t.Errorf("never forgotten: %+v", q.List(true, everything))
		}
		if want := []string{"a.org pending", "a.org approved", "a.org pending", "a.org rejected"}; !slices.Equal(w.told, want) {
			t.Errorf("told %q, want %q", w.told, want)
		}
	})
}

func TestQuestionsOutliveWhoAsks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var w watch
		q := approval.New(w.notify)
		ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
		defer cancel()
		if q.Ask(ctx, ask("a.org")) || len(q.List(false, everything)) != 1 {
			t.Fatal("a question ends with who asks")
		}
		time.Sleep(approval.Pending)
		if list := q.List(true, everything); len(list) != 1 || list[0].State != api.ApprovalExpired {
			t.Errorf("not expired: %+v", list)
		}
		go q.Ask(t.Context(), ask("b.org"))
		synctest.Wait()
		q.Forget("sb-2")
		if len(q.List(false, everything)) != 1 {
			t.Error("another sandbox's question is forgotten")
		}
		q.Forget("sb-1")
		synctest.Wait()
		if want := []string{"a.org pending", "a.org expired", "b.org pending", "b.org expired"}; !slices.Equal(w.told, want) {
			t.Errorf("told %q, want %q", w.told, want)
		}
	})
}

func TestQuestionsAreBounded(t *testing.T) {
	q := approval.New(nil)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	for i := range 100 {
		q.Ask(ctx, ask("n"+strconv.Itoa(i)))
	}
	if n := len(q.List(true, everything)); n != 32 {
		t.Errorf("%d questions of one sandbox wait", n)
	}
	other := ask("a.org")
	other.Sandbox = "sb-2"
	q.Ask(ctx, other)
	if list := q.List(false, func(a api.Approval) bool { return a.Sandbox == "sb-2" }); len(list) != 1 {
		t.Errorf("one sandbox keeps another from asking: %+v", list)
	}
	if _, ok := q.Get("nope"); ok {
		t.Error("there is what is not")
	}
}

// TestOneTenantLeavesRoomForOthers: neither with many sandboxes at once nor with many
// one after the other does a tenant keep another one's from asking.
func TestOneTenantLeavesRoomForOthers(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	flood := func(q *approval.Queue, forget bool) {
		for i := range 150 {
			for j := range 40 {
				ask := ask("n" + strconv.Itoa(j))
				ask.Sandbox = "sb-" + strconv.Itoa(i)
				q.Ask(ctx, ask)
			}
			if forget {
				q.Forget("sb-" + strconv.Itoa(i))
			}
		}
	}
	for _, forget := range []bool{false, true} {
		q := approval.New(nil)
		flood(q, forget)
		if n := len(q.List(true, everything)); n > 2000 {
			t.Errorf("%d questions of one tenant are kept", n)
		}
		other := ask("a.org")
		other.Tenant, other.Sandbox = "blue", "sb-blue"
		q.Ask(ctx, other)
		if list := q.List(false, func(a api.Approval) bool { return a.Tenant == "blue" }); len(list) != 1 {
			t.Errorf("forget %t: another tenant cannot ask", forget)
		}
	}
}
