package envd

import (
	"context"
	"io"
	"net/http"
	"net/url"
	"strings"
	"testing"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/core"
)

// sink is core that takes files and keeps their paths.
type sink struct {
	Core
	paths []string
}

func (s *sink) WriteFile(_ context.Context, _ core.Caller, _ string, at api.FilePlace, _ uint32, r io.Reader) (api.FileInfo, error) {
	if _, err := io.Copy(io.Discard, r); err != nil {
		return api.FileInfo{}, err
	}
	s.paths = append(s.paths, at.Path)
	return api.FileInfo{}, nil
}

// ReceiveUpload gives one upload to the code that reads it, and checks the paths that it writes.
func ReceiveUpload(t *testing.T, kind, coding, path, body string) {
	t.Helper()
	s := &sink{}
	v := &view{core: s, who: &actor{home: "/home/user"}}
	r := &http.Request{Method: http.MethodPost, Header: http.Header{"Content-Type": {kind}, "Content-Encoding": {coding}}, Body: io.NopCloser(strings.NewReader(body))}
	out, err := v.receive(r.WithContext(t.Context()), url.Values{"path": {path}})
	if err == nil && len(out) != len(s.paths) {
		t.Errorf("%d files are told and %d written", len(out), len(s.paths))
	}
	for _, p := range s.paths {
		if !strings.HasPrefix(p, "/") || strings.ContainsRune(p, 0) || strings.Contains(p+"/", "/../") || len(p) > maxPath {
			t.Errorf("%q was written", p)
		}
	}
}
