//go:build linux

package endpoint_test

import (
	"io"
	"net"
	"net/http"
	"path/filepath"
	"sync"
	"testing"

	"github.com/cloche-dev/cloche/api"
)

// TestOwnSocket: what this very process listens at is no target, by whatever path.
func TestOwnSocket(t *testing.T) {
	path := filepath.Join(t.TempDir(), "api.sock")
	ln, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	srv := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, "everything") })}
	var wg sync.WaitGroup
	wg.Go(func() { _ = srv.Serve(ln) })
	defer wg.Wait()
	defer srv.Close()
	in := open(t, api.Endpoint{Target: "unix://" + path}, nil)
	resp, err := http.Get(in.base + "/v1/sandboxes")
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if body, _ := io.ReadAll(resp.Body); resp.StatusCode != 502 || resp.Header.Get("X-Bridge-Error") != "target_denied" {
		t.Errorf("%s %s", resp.Status, body)
	}
	gone := open(t, api.Endpoint{Target: "unix://" + path + ".gone"}, nil)
	resp, err = http.Get(gone.base)
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	if resp.StatusCode != 502 || resp.Header.Get("X-Bridge-Error") != "target_unreachable" {
		t.Errorf("one that is not there: %s %s", resp.Status, resp.Header.Get("X-Bridge-Error"))
	}
}
