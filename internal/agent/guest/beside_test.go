//go:build linux

package guest

import (
	"bytes"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/agent"
)

// partial is a file that takes some bytes, and fails then or when it is closed.
type partial struct {
	*os.File
	takes   int
	atClose error
}

// Write implements io.Writer.
func (p *partial) Write(b []byte) (int, error) {
	n, err := p.File.Write(b[:min(len(b), p.takes)])
	if p.takes -= n; err == nil && n < len(b) {
		err = errors.New("it takes no more")
	}
	return n, err
}

// Close implements io.Closer.
func (p *partial) Close() error { return errors.Join(p.File.Close(), p.atClose) }

// brokenReader yields bytes and an error.
type brokenReader struct{ io.Reader }

// Read implements io.Reader.
func (b brokenReader) Read(p []byte) (int, error) {
	n, err := b.Reader.Read(p)
	if err == io.EOF {
		err = io.ErrUnexpectedEOF
	}
	return n, err
}

// TestWriteBeside: a file is whole, or not there, whatever part of it the host has written itself.
func TestWriteBeside(t *testing.T) {
	in := boot(t, nil)
	content := bytes.Repeat([]byte("0123456789abcdef"), 3<<16) // 3 MiB
	for name, c := range map[string]struct {
		takes   int
		atClose error
		none    bool
		broken  bool
		fails   string
	}{
		"all":              {takes: len(content)},
		"more than that":   {takes: 2 * len(content)},
		"nothing":          {takes: 0},
		"no host":          {none: true},
		"a part":           {takes: 1<<20 + 17},
		"all but a byte":   {takes: len(content) - 1},
		"not when closed":  {takes: len(content), atClose: errors.New("lost"), fails: "lost"},
		"part of a broken": {takes: 1 << 20, broken: true, fails: "unexpected EOF"},
		"all of a broken":  {takes: 1 << 30, broken: true, fails: "unexpected EOF"},
	} {
		dir := t.TempDir()
		at := filepath.Join(dir, "below", "file")
		var r io.Reader = bytes.NewReader(content)
		if c.broken {
			r = brokenReader{r}
		}
		asked := false
		info, err := in.Files(api.FileAccess{}).WriteBeside(t.Context(), at, agent.WriteOptions{Parents: true, Mode: 0o640}, r, func(temp string, info api.FileInfo) io.WriteCloser {
			asked = true
			if filepath.Dir(temp) != filepath.Dir(at) || info.Type != api.TypeFile || info.Size != 0 {
				t.Errorf("%s: the file is at %s, %+v", name, temp, info)
			}
			if c.none {
				return nil
			}
			f, err := os.OpenFile(temp, os.O_WRONLY, 0)
			if err != nil {
				t.Error(err)
				return nil
			}
			return &partial{File: f, takes: c.takes, atClose: c.atClose}
		})
		got, rerr := os.ReadFile(at)
		switch {
		case !asked:
			t.Errorf("%s: the host was not asked", name)
		case c.fails != "":
			left, _ := os.ReadDir(filepath.Dir(at))
			for until := time.Now().Add(10 * time.Second); len(left) > 0 && time.Now().Before(until); time.Sleep(time.Millisecond) {
				left, _ = os.ReadDir(filepath.Dir(at)) // the agent removes it when it sees the end
			}
			if err == nil || !strings.Contains(err.Error(), c.fails) || len(left) > 0 {
				t.Errorf("%s: %v, want %s; left %v", name, err, c.fails, left)
			}
		case err != nil || rerr != nil || !bytes.Equal(got, content) || info.Size != int64(len(content)) || info.Mode != 0o640:
			t.Errorf("%s: %v, %v, %d bytes, %+v", name, err, rerr, len(got), info)
		}
	}
	// What is no file is written in place, by the agent.
	_, err := in.Files(api.FileAccess{}).WriteBeside(t.Context(), "/dev/null", agent.WriteOptions{}, bytes.NewReader(content), func(string, api.FileInfo) io.WriteCloser {
		t.Error("the host was asked for a device")
		return nil
	})
	if err != nil {
		t.Error(err)
	}
	// A refusal comes before the first byte.
	if _, err := in.Files(api.FileAccess{}).WriteBeside(t.Context(), t.TempDir(), agent.WriteOptions{}, bytes.NewReader(content), nil); err == nil {
		t.Error("a directory was written")
	}
}
