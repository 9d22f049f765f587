package httpapi_test

import (
	"context"
	"errors"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/client"
	"github.com/cloche-dev/cloche/internal/await"
	"github.com/cloche-dev/cloche/internal/core"
	"github.com/cloche-dev/cloche/internal/httpapi"
	"github.com/cloche-dev/cloche/test/longtest"
)

// stuck is a core some verbs of which never return by themselves.
type stuck struct {
	httpapi.Core
	// freed is closed at the end of the test.
	freed chan struct{}
	// tried has one element for each write to an answer after its deadline.
	tried chan error
}

// Get ignores its context.
func (s *stuck) Get(ctx context.Context, _ core.Caller, _ string) (api.Sandbox, error) {
	defer await.For(ctx, "the agent of sandbox box")()
	<-s.freed
	return api.Sandbox{}, nil
}

// List ends with its context.
func (s *stuck) List(ctx context.Context, _ core.Caller, _ api.ListOptions) (api.SandboxList, error) {
	<-ctx.Done()
	return api.SandboxList{}, context.Cause(ctx)
}

// Stop goes on whatever becomes of its caller.
func (s *stuck) Stop(context.Context, core.Caller, string, *time.Duration) (api.Sandbox, error) {
	<-s.freed
	return api.Sandbox{}, nil
}

// ReadFile gives a part of a file.
func (s *stuck) ReadFile(context.Context, core.Caller, string, api.FilePlace, int64, int64) (io.ReadCloser, api.FileInfo, error) {
	first := strings.NewReader("first")
	return io.NopCloser(io.MultiReader(first, readerFunc(func([]byte) (int, error) {
		<-s.freed
		return 0, io.EOF
	}))), api.FileInfo{Type: api.TypeFile, Size: 10}, nil
}

// WriteFile reads the body, slowly but without an end.
func (s *stuck) WriteFile(_ context.Context, _ core.Caller, _ string, _ api.FilePlace, _ uint32, r io.Reader) (api.FileInfo, error) {
	n, err := io.Copy(io.Discard, r)
	s.tried <- err
	return api.FileInfo{Type: api.TypeFile, Size: n}, err
}

type readerFunc func([]byte) (int, error)

func (f readerFunc) Read(p []byte) (int, error) { return f(p) }

// TestDeadlines: a request ends by its deadline whatever its verb does, with an error that
// says what did not answer.
func TestDeadlines(t *testing.T) {
	longtest.Skip(t, "it waits for deadlines")
	const limit = time.Second
	s := &stuck{freed: make(chan struct{}), tried: make(chan error, 1)}
	h := openWith(t, func(o *httpapi.Options) {
		s.Core, o.Core = o.Core, s
		o.Deadlines = httpapi.Deadlines{Call: limit, Change: limit, Work: limit, Transfer: limit}
	})
	defer close(s.freed)
	c, err := client.New(client.Options{Host: "unix://" + h.unix})
	if err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct {
		name string
		call func() error
		says string
		most time.Duration
	}{
		{"a verb that ignores its context", func() error { _, err := c.Get(t.Context(), "box"); return err }, "the agent of sandbox box has not answered for", limit},
		{"one that ends with it", func() error { _, err := c.List(t.Context(), api.ListOptions{}); return err }, "was not done within", limit},
		{"one with a grace period", func() error {
			_, err := c.Stop(t.Context(), "box", api.StopOptions{GraceMS: new(int64(1000))})
			return err
		}, "was not done within", 2 * limit},
	} {
		begun := time.Now()
		err := tc.call()
		took := time.Since(begun)
		e, ok := errors.AsType[*api.Error](err)
		if !ok || e.Code != api.CodeTimeout || !strings.Contains(e.Message, tc.says) || e.RequestID == "" {
			t.Errorf("%s: %v", tc.name, err)
		}
		t.Logf("%s: %s over its deadline", tc.name, took-tc.most)
		if took < tc.most || took > tc.most+30*time.Second {
			t.Errorf("%s: it took %s", tc.name, took)
		}
	}
	// An answer that has begun is broken off, and never looks whole.
	f, _, err := c.OpenFile(t.Context(), "box", "/a", 0, -1)
	if err == nil {
		var data []byte
		data, err = io.ReadAll(f)
		if string(data) != "first" {
			t.Errorf("read %q", data)
		}
	}
	if err == nil {
		t.Error("a file that did not come whole was read")
	}
	// What moves has no deadline: a byte at a time, for longer than the deadline of a pause.
	slow := readerFunc(func() func(p []byte) (int, error) {
		n := 0
		return func(p []byte) (int, error) {
			if n++; n > 12 {
				return 0, io.EOF
			}
			time.Sleep(limit / 4)
			return copy(p, "x"), nil
		}
	}())
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPut, "http://"+h.tcp+"/v1/sandboxes/box/files?path=/a", slow)
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer "+token)
	req.Header.Set("Content-Type", "application/octet-stream")
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	if err := <-s.tried; resp.StatusCode != http.StatusOK || err != nil {
		t.Errorf("a slow upload: %s, %v", resp.Status, err)
	}
}

// TestContractHasTheDeadlines: every operation has a deadline, and the contract says which.
func TestContractHasTheDeadlines(t *testing.T) {
	paces, written := open(t).server.Paces(), 0
	for path, item := range contract(t).Paths.Map() {
		for method, op := range item.Operations() {
			written++
			if pace := paces[method+" "+path]; pace == "" || op.Extensions["x-deadline"] != pace {
				t.Errorf("%s %s has the deadline %q, and in the contract %v", method, path, pace, op.Extensions["x-deadline"])
			}
		}
	}
	if written != len(paces) {
		t.Errorf("the contract has %d operations, and the server %d", written, len(paces))
	}
}
