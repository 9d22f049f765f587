package bridge_test

import (
	"io"
	"net/http"
	"testing"

	"github.com/cloche-dev/cloche"
)

// A response that its target breaks off is on record as that, and is broken off for who
// asked.
func TestResponseIsBrokenOff(t *testing.T) {
	srv := target(t, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Length", "100")
		_, _ = io.WriteString(w, "half")
		w.(http.Flusher).Flush()
		panic(http.ErrAbortHandler)
	})
	in := open(t, cloche.Endpoint{Target: srv.URL}, nil)
	resp, err := http.Get(in.base + "/x")
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if b, err := io.ReadAll(resp.Body); err == nil {
		t.Errorf("it ended well: %q", b)
	}
	until(t, func() bool { return in.Status().Counters.Active == 0 })
	if x := in.last(t); x.Code != "target_reset" || x.Outcome == "ok" {
		t.Errorf("on record: %+v", x)
	}
}
