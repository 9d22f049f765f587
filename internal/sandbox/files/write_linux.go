package files

import (
	"bytes"
	"context"
	"io"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/agent"
)

// minHostWrite is from how many bytes on a file is written on the host: less is not worth another open.
const minHostWrite = 1 << 20

// write writes a file. A large one that will lie in a directory of this machine is written there, past the
// sandbox: the agent makes the file and gives it its name, as it would otherwise.
func write(ctx context.Context, s Sandbox, c *agent.Client, at api.FilePlace, o agent.WriteOptions, r io.Reader) (api.FileInfo, error) {
	files := c.Files(at.FileAccess)
	if dir, _, ok := hostDir(s, at); !ok || dir.ReadOnly {
		return files.Write(ctx, at.Path, o, r)
	}
	r, large := atLeast(r, minHostWrite)
	if !large {
		return files.Write(ctx, at.Path, o, r)
	}
	return files.WriteBeside(ctx, at.Path, o, r, func(temp string, info api.FileInfo) io.WriteCloser {
		return hostWriter(s, api.FilePlace{Path: temp, FileAccess: at.FileAccess}, info)
	})
}

// atLeast says whether r has n bytes or more. The reader that it returns has all of them.
func atLeast(r io.Reader, n int64) (all io.Reader, ok bool) {
	var first bytes.Buffer
	got, err := io.CopyN(&first, r, n)
	return io.MultiReader(&first, &failing{r, err}), got == n
}

// failing reads r, or returns the error with which it has ended.
type failing struct {
	r   io.Reader
	err error
}

func (f *failing) Read(b []byte) (int, error) {
	if f.err != nil {
		return 0, f.err
	}
	return f.r.Read(b)
}

// hostWriter opens the empty file that the agent has made, or returns nil. What the agent says of it is not
// trusted: a file that has another name too, or any content, is not written to.
func hostWriter(s Sandbox, at api.FilePlace, info api.FileInfo) io.WriteCloser {
	dir, rel, ok := hostDir(s, at)
	if !ok || rel == "" || dir.ReadOnly {
		return nil
	}
	f, err := openFile(dir, rel, unix.O_WRONLY)
	if err != nil {
		return nil
	}
	var st unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &st); err != nil || st.Mode&unix.S_IFMT != unix.S_IFREG || st.Nlink != 1 || st.Size != 0 ||
		!info.ModTime.Equal(time.Unix(st.Mtim.Unix())) {
		f.Close()
		return nil
	}
	return f
}
