//go:build linux

package guest

import (
	"bytes"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"github.com/cloche-dev/cloche/api"
)

// failingWriter takes a few bytes.
type failingWriter struct{ left int }

// Write implements io.Writer.
func (w *failingWriter) Write(b []byte) (int, error) {
	if w.left -= len(b); w.left < 0 {
		return 0, errors.New("it takes no more")
	}
	return len(b), nil
}

// TestTransferThatIsGivenUp: a caller that leaves a download holds no file open, whose space would not be
// free after its removal.
func TestTransferThatIsGivenUp(t *testing.T) {
	in := boot(t, nil)
	name := filepath.Join(t.TempDir(), "large")
	if err := os.WriteFile(name, bytes.Repeat([]byte("x"), 16<<20), 0o600); err != nil {
		t.Fatal(err)
	}
	open := func() (n int) {
		dir := "/proc/" + strconv.Itoa(in.cmd.Process.Pid) + "/fd/"
		fds, err := os.ReadDir(dir)
		if err != nil {
			t.Fatal(err)
		}
		for _, fd := range fds {
			if to, err := os.Readlink(dir + fd.Name()); err == nil && filepath.Base(to) == "large" {
				n++
			}
		}
		return n
	}
	for what, leave := range map[string]func() error{
		"a read": func() error {
			r, _, err := in.Files(api.FileAccess{}).Read(t.Context(), name, 0, -1)
			if err != nil {
				return err
			}
			_, err = io.ReadFull(r, make([]byte, 1))
			return errors.Join(err, r.Close())
		},
		"a tar": func() error {
			if _, err := in.TarOut(t.Context(), filepath.Dir(name), api.TarOutOptions{}, &failingWriter{1 << 20}); err == nil {
				return errors.New("the tar was taken")
			}
			return nil
		},
	} {
		if err := leave(); err != nil {
			t.Errorf("%s: %v", what, err)
		}
		// The stream alone is given up after half a minute.
		for until := time.Now().Add(15 * time.Second); open() > 0; time.Sleep(10 * time.Millisecond) {
			if time.Now().After(until) {
				t.Errorf("%s that was given up holds the file", what)
				break
			}
		}
	}
}
