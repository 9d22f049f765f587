package endpoint_test

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cloche-dev/cloche/api"
)

// tries is a client that asks as SDKs do.
func (in *inside) tries(ctx context.Context, t *testing.T, body string, header map[string]string) (int, string) {
	t.Helper()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, in.base+"/v1/x?q=1", strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	for k, v := range header {
		req.Header.Set(k, v)
	}
	resp, err := (&http.Client{Transport: &http.Transport{DisableKeepAlives: true}}).Do(req)
	if err != nil {
		return 0, err.Error()
	}
	defer resp.Body.Close()
	got, err := io.ReadAll(resp.Body)
	if err != nil {
		return 0, err.Error()
	}
	return resp.StatusCode, string(got)
}

func counted(n int) map[string]string {
	return map[string]string{"X-Stainless-Retry-Count": fmt.Sprint(n)}
}

// TestOnce: a repeated request does not reach the target again, and a request that only looks alike does.
func TestOnce(t *testing.T) {
	var asked atomic.Int64
	srv := target(t, func(w http.ResponseWriter, r *http.Request) {
		n := asked.Add(1)
		body, err := io.ReadAll(r.Body)
		if err != nil {
			t.Error(err)
		}
		w.Header().Add("Set-Cookie", "a")
		w.Header().Add("Set-Cookie", "b")
		switch {
		case bytes.HasPrefix(body, []byte("fails")):
			w.WriteHeader(500)
		case bytes.HasPrefix(body, []byte("event")):
			w.Header().Set("Content-Type", "text/event-stream")
		case bytes.HasPrefix(body, []byte("large")):
			w.Write(bytes.Repeat([]byte("x"), 2<<20))
		}
		fmt.Fprintf(w, "%d %s", n, body)
	})
	in := open(t, api.Endpoint{Target: srv.URL, HTTP: &api.EndpointHTTP{Once: true}, Audit: &api.EndpointAudit{Capture: api.CaptureBody, MaxBytes: 64}}, nil)
	key := func(k string) map[string]string { return map[string]string{"Idempotency-Key": k} }
	for i, c := range []struct {
		body   string
		header map[string]string
		asks   int64
		again  bool
	}{
		{"a", nil, 1, false},
		{"a", nil, 1, false},
		{"a", key("k1"), 1, false},
		{"a", key("k1"), 0, true},
		{"a", key("k1"), 0, true},
		{"b", key("k1"), 1, false},
		{"a", key("k2"), 1, false},
		// Each of these got its answer: the next is another.
		{"a", counted(0), 1, false},
		{"a", counted(0), 1, false},
		{"a", counted(1), 1, false},
		{"fails", key("k3"), 1, false},
		{"fails", key("k3"), 1, false},
		{"event", key("k4"), 1, false},
		{"event", key("k4"), 1, false},
		{"large", key("k5"), 1, false},
		{"large", key("k5"), 1, false},
		{"", key("k6"), 1, false},
		{"", key("k6"), 0, true},
		{"c", key("k7"), 1, false},
		{"c", key("k7"), 0, true},
	} {
		in.settled(t, i) // so that it is known which of them arrived
		before := asked.Load()
		status, got := in.tries(t.Context(), t, c.body, c.header)
		want := fmt.Sprintf("%d %s", asked.Load(), c.body)
		if c.body == "large" {
			want = strings.Repeat("x", 2<<20) + want
		}
		if c.again {
			want = got // another number
		}
		if n := asked.Load() - before; n != c.asks || got != want || (status == 500) != (c.body == "fails") || status != 500 && status != 200 {
			t.Errorf("%d %+v: asked %d times, %d %.80q", i, c, n, status, got)
		}
	}
	in.settled(t, 20)
	if x := in.last(t); !x.Repeated || x.Outcome != "ok" || x.Upstream != 200 || x.Capture.RequestBody != "c" {
		t.Errorf("%+v", x)
	}
}

// settled waits until so many exchanges are on record.
func (in *inside) settled(t *testing.T, n int) {
	t.Helper()
	for begun := time.Now(); time.Since(begun) < 20*time.Second; time.Sleep(time.Millisecond) {
		in.mu.Lock()
		have := len(in.exchanges)
		in.mu.Unlock()
		if have >= n {
			return
		}
	}
	t.Fatalf("there are not %d exchanges on record", n)
}

// TestOnceInFlight: a request that is repeated while the first is under way gets its answer, also
// when the first client has left; and so do many at once.
func TestOnceInFlight(t *testing.T) {
	var asked atomic.Int64
	begun, answer := make(chan struct{}, 64), make(chan struct{})
	srv := target(t, func(w http.ResponseWriter, _ *http.Request) {
		n := asked.Add(1)
		begun <- struct{}{}
		<-answer
		fmt.Fprint(w, "answer ", n)
	})
	in := open(t, api.Endpoint{Target: srv.URL, HTTP: &api.EndpointHTTP{Once: true}}, nil)
	ctx, leave := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	wg.Go(func() {
		if status, _ := in.tries(ctx, t, "question", counted(0)); status != 0 {
			t.Error("it was cut off, and has an answer")
		}
	})
	<-begun
	leave()
	wg.Wait()
	in.settled(t, 1)
	if x := in.last(t); x.Outcome != "client_cancel" {
		t.Errorf("%+v", x)
	}
	wg.Go(func() {
		if status, got := in.tries(t.Context(), t, "question", counted(1)); status != 200 || got != "answer 1" {
			t.Error(status, got)
		}
	})
	for range 16 {
		wg.Go(func() {
			if status, got := in.tries(t.Context(), t, "question", map[string]string{"Idempotency-Key": "k"}); status != 200 || got != "answer 2" {
				t.Error(status, got)
			}
		})
	}
	<-begun
	close(answer)
	wg.Wait()
	if n := asked.Load(); n != 2 {
		t.Errorf("the target was asked %d times", n)
	}
}

// TestOnceEnds: the removal of an endpoint ends requests without a waiting client.
func TestOnceEnds(t *testing.T) {
	begun, gone := make(chan struct{}), make(chan struct{})
	srv := target(t, func(_ http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body) // before that the server does not see that the client leaves
		close(begun)
		<-r.Context().Done()
		close(gone)
	})
	in := open(t, api.Endpoint{Target: srv.URL, HTTP: &api.EndpointHTTP{Once: true}}, nil)
	ctx, leave := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	wg.Go(func() { in.tries(ctx, t, "question", counted(0)) })
	<-begun
	leave()
	wg.Wait()
	in.Close(t.Context(), 0)
	<-gone
}
