package image

import (
	"bytes"
	"context"
	"io"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"os"
	"sync"
	"testing"
	"time"
)

// requestLog is what a registry was asked for.
type requestLog struct {
	mu   sync.Mutex
	list []string
}

func (l *requestLog) add(r *http.Request) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.list = append(l.list, r.Method+" "+r.URL.Path)
}

func (l *requestLog) all() []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return append([]string(nil), l.list...)
}

func newRecorder() *httptest.ResponseRecorder { return httptest.NewRecorder() }

// opened gives the same bytes as often as it is asked.
func opened(raw []byte) func(context.Context) (io.ReadCloser, error) {
	return func(context.Context) (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(raw)), nil }
}

func openedReader(r io.ReadCloser) func(context.Context) (io.ReadCloser, error) {
	return func(context.Context) (io.ReadCloser, error) { return r, nil }
}

// noiseOf is 600 kB that do not compress.
func noiseOf(seed byte) string {
	noise := make([]byte, 600_000)
	_, _ = rand.NewChaCha8([32]byte{seed}).Read(noise)
	return string(noise)
}

func timeAgo(hours int) time.Time {
	return time.Now().Add(-time.Duration(hours) * time.Hour).Truncate(time.Second)
}

func timeOf(t testing.TB, path string) time.Time {
	t.Helper()
	info, err := os.Stat(path)
	must(t, err)
	return info.ModTime()
}
