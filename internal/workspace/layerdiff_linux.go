//go:build !remoteonly

package workspace

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"io"
	"math"
	"os"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/cloche-dev/cloche/api"
)

// maxChanges bounds what a diff lists.
const maxChanges = 1_000_000

// Diff lists what the layer changes in lower, sorted by the bytes of the paths. It
// reads the layer and looks below for what the layer has, no more. A file that was
// there before is changed when its content, owner or mode are not what they were;
// a directory when its owner or mode are. A directory that was removed is one
// change. It may be called while the sandbox writes.
func (l *Layer) Diff(ctx context.Context, lower *Dir) ([]api.Change, error) {
	var changes []api.Change
	err := l.Walk(ctx, lower, func(ch api.Change) error {
		if len(changes) == maxChanges {
			return api.Errorf(api.CodeTooLarge, "more than %d paths were changed", maxChanges).
				WithHint("commit or roll back the workspace as a whole, or take a snapshot of it")
		}
		changes = append(changes, ch)
		return nil
	})
	if err != nil {
		return nil, err
	}
	slices.SortFunc(changes, func(a, b api.Change) int { return cmp.Compare(RawPath(a), RawPath(b)) })
	return changes, nil
}

// Walk is Diff without a bound on how much was changed: it calls each with one
// change after the other, in no order, until that returns an error.
func (l *Layer) Walk(ctx context.Context, lower *Dir, each func(api.Change) error) error {
	upper, err := l.reader(upperDir)
	if err != nil {
		return err
	}
	defer upper.Close()
	below, err := lower.reader()
	if err != nil {
		return err
	}
	defer below.Close()
	c := &comparison{ctx: ctx, each: each}
	return c.dir(upper, below, "", 0, false)
}

type comparison struct {
	ctx  context.Context
	each func(api.Change) error
}

func (c *comparison) add(path string, kind api.ChangeKind, now, before *unix.Stat_t) error {
	ch := NewChange(path, kind)
	if now != nil {
		ch.Type = typeOf(now)
		if isFile(now) {
			ch.Size = now.Size
		}
	}
	if before != nil {
		ch.Type = cmp.Or(ch.Type, typeOf(before))
		if isFile(before) {
			ch.OldSize = before.Size
		}
	}
	return c.each(ch)
}

// dir compares one directory of the layer with what is below it; lower is nil for
// one that was not there. What is in a directory that hides what was there hides as
// well, without saying so.
func (c *comparison) dir(upper, lower *os.File, prefix string, depth int, hides bool) error {
	if depth > maxDepth {
		return tooDeep(prefix)
	}
	hides = hides || depth > 0 && opaque(upper)
	if lower != nil && hides {
		if err := c.hidden(upper, lower, prefix); err != nil {
			return err
		}
	}
	return eachName(c.ctx, upper, func(name string) error {
		return c.entry(upper, lower, name, within(prefix, name), depth, hides)
	})
}

// hidden lists what an opaque directory hides and has not itself.
func (c *comparison) hidden(upper, lower *os.File, prefix string) error {
	again, err := openDirAt(lower, ".")
	if err != nil {
		return err
	}
	defer again.Close()
	return eachName(c.ctx, again, func(name string) error {
		if _, err := lstatAt(upper, name); !errors.Is(err, os.ErrNotExist) {
			return err
		}
		before, err := lstatAt(lower, name)
		if err != nil {
			return ignoreMissing(err)
		}
		return c.add(within(prefix, name), api.ChangeRemoved, nil, &before)
	})
}

func (c *comparison) entry(upper, lower *os.File, name, path string, depth int, hides bool) error {
	now, err := lstatAt(upper, name)
	if err != nil {
		return ignoreMissing(err) // gone since it was listed
	}
	var before *unix.Stat_t
	if lower != nil {
		st, err := lstatAt(lower, name)
		if err == nil {
			before = &st
		} else if !errors.Is(err, os.ErrNotExist) {
			return err
		}
	}
	switch {
	case whiteout(&now) && before == nil:
		return nil
	case whiteout(&now):
		return c.add(path, api.ChangeRemoved, nil, before)
	case before == nil:
		err = c.add(path, api.ChangeAdded, &now, nil)
	case !c.same(upper, lower, name, &now, before):
		err = c.add(path, api.ChangeChanged, &now, before)
	}
	if err != nil || !isDir(&now) {
		return err
	}
	u, err := openDirAt(upper, name)
	if err != nil {
		return ignoreMissing(err)
	}
	defer u.Close()
	var below *os.File
	if before != nil && isDir(before) {
		if below, err = openDirAt(lower, name); err != nil {
			return err
		}
		defer below.Close()
	}
	return c.dir(u, below, path, depth+1, hides)
}

// same reports whether an entry of the layer is what was there before: the kernel
// copies a file up when it is opened for writing, whether anything is written or
// not. Times decide nothing, because a program sets them as it likes.
func (c *comparison) same(upper, lower *os.File, name string, now, before *unix.Stat_t) bool {
	if now.Mode != before.Mode || now.Uid != before.Uid || now.Gid != before.Gid {
		return false
	}
	switch {
	case isDir(now):
		return true
	case isFile(now):
		return now.Size == before.Size && c.sameContent(upper, lower, name)
	case isSymlink(now):
		return target(upper, name) == target(lower, name)
	}
	return now.Rdev == before.Rdev
}

func target(dir *os.File, name string) string {
	b := make([]byte, unix.PathMax)
	n, err := unix.Readlinkat(int(dir.Fd()), name, b)
	if err != nil {
		return ""
	}
	return string(b[:n])
}

func (c *comparison) sameContent(upper, lower *os.File, name string) bool {
	a, err := openFileAt(upper, name)
	if err != nil {
		return false
	}
	defer a.Close()
	b, err := openFileAt(lower, name)
	if err != nil {
		return false
	}
	defer b.Close()
	const chunk = 128 << 10
	x, y := make([]byte, chunk), make([]byte, chunk)
	for at := int64(0); c.ctx.Err() == nil; {
		// What is a hole in both is the same, however large a sandbox made it.
		if at = min(nextData(a, at), nextData(b, at)); at == math.MaxInt64 {
			return true
		}
		n, aerr := a.ReadAt(x, at)
		m, berr := b.ReadAt(y, at)
		if !bytes.Equal(x[:n], y[:m]) {
			return false
		}
		if aerr != nil || berr != nil {
			// Both end here, or one could not be read.
			return errors.Is(aerr, io.EOF) && errors.Is(berr, io.EOF)
		}
		at += chunk
	}
	return false
}

// nextData is where the next byte of a file is that is no hole, at or after an
// offset; the largest offset without such a byte. A filesystem that knows of no holes
// has data everywhere.
func nextData(f *os.File, at int64) int64 {
	next, err := unix.Seek(int(f.Fd()), at, unix.SEEK_DATA)
	switch {
	case errors.Is(err, unix.ENXIO):
		return math.MaxInt64
	case err != nil:
		return at
	}
	return next
}

// openFileAt opens a regular file; what has become something else is an error.
func openFileAt(dir *os.File, name string) (*os.File, error) {
	fd, err := unix.Openat(int(dir.Fd()), name, unix.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK|unix.O_NOCTTY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, &os.PathError{Op: "open", Path: name, Err: err}
	}
	f := os.NewFile(uintptr(fd), name)
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil || !isFile(&st) {
		f.Close()
		return nil, &os.PathError{Op: "open", Path: name, Err: unix.ESTALE}
	}
	return f, nil
}

// whiteout reports whether an entry of a layer says that a name is gone.
func whiteout(st *unix.Stat_t) bool {
	return st.Mode&unix.S_IFMT == unix.S_IFCHR && st.Rdev == 0
}

// opaque reports whether a directory of a layer hides all that is below it.
func opaque(dir *os.File) bool {
	var b [1]byte
	n, err := unix.Fgetxattr(int(dir.Fd()), opaqueXattr, b[:])
	return err == nil && n == 1 && b[0] == 'y'
}
