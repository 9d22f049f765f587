package client_test

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/client"
)

// TestStanding is the client's half of why no sandbox is available.
func TestStanding(t *testing.T) {
	var serve atomic.Pointer[http.HandlerFunc]
	play := func(fn http.HandlerFunc) { serve.Store(&fn) }
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { (*serve.Load())(w, r) }))
	defer srv.Close()
	play(func(w http.ResponseWriter, _ *http.Request) {
		w.Write([]byte(`{"enabled":true,"available":true}`))
	})
	newClient := func(host string) *client.Client {
		t.Helper()
		c, err := client.New(client.Options{Host: host})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.Close() })
		return c
	}
	want := func(what string, st api.Status, reason api.StatusReason, says string) {
		t.Helper()
		if st.Reason != reason || !strings.Contains(st.Message, says) || st.Available != (reason == "") {
			t.Errorf("%s: %+v", what, st)
		}
	}
	c := newClient(srv.URL)
	want("a daemon", c.Standing(t.Context()), "", "")
	play(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(http.StatusInternalServerError)
		w.Write([]byte(`{"error":{"code":"internal","message":"it broke"}}`))
	})
	want("it answers with an error", c.Standing(t.Context()), api.ReasonFailing, "it broke")
	want("the first answer is an error", newClient(srv.URL).Standing(t.Context()), api.ReasonFailing, "it broke")
	play(func(w http.ResponseWriter, _ *http.Request) {
		w.Write([]byte(`{"enabled":false,"available":false,"reason":"disabled","message":"switched off"}`))
	})
	want("its own reason", c.Standing(t.Context()), api.ReasonDisabled, "switched off")
	srv.Close()
	want("it went away", c.Standing(t.Context()), api.ReasonLost, "no daemon is listening")
	want("it never was", newClient(srv.URL).Standing(t.Context()), api.ReasonNeverConnected, "no daemon is listening")
}
