// Package tarfile makes and reads tar archives for tests.
package tarfile

import (
	"archive/tar"
	"bytes"
	"errors"
	"io"
	"slices"
	"testing"
	"time"
)

// Member is one entry of an archive. Its size is the length of Content.
type Member struct {
	tar.Header
	Content string
}

// Regular is a regular file of mode 0640.
func Regular(name, content string) Member {
	return Member{Header: tar.Header{Typeflag: tar.TypeReg, Name: name, Mode: 0o640, ModTime: time.Unix(1000, 0)}, Content: content}
}

// Pack makes an archive. A member without a mode gets 0755.
func Pack(t testing.TB, members ...Member) *bytes.Buffer {
	t.Helper()
	var buf bytes.Buffer
	w := tar.NewWriter(&buf)
	for _, m := range members {
		m.Size = int64(len(m.Content))
		if m.Mode == 0 && m.Typeflag != tar.TypeXGlobalHeader {
			m.Mode = 0o755
		}
		if err := w.WriteHeader(&m.Header); err != nil {
			t.Fatal(err)
		}
		if _, err := io.WriteString(w, m.Content); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return &buf
}

// Names returns the sorted names of an archive's entries.
func Names(t testing.TB, archive []byte) []string {
	t.Helper()
	var all []string
	r := tar.NewReader(bytes.NewReader(archive))
	for {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			slices.Sort(all)
			return all
		}
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, h.Name)
	}
}
