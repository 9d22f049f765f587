//go:build linux

package guest

import (
	"bufio"
	"bytes"
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"io"
	"io/fs"
	"os"
	"path"
	"strings"
	"syscall"
	"unicode/utf8"

	"golang.org/x/sys/unix"

	"github.com/cloche-dev/cloche"
)

const (
	// sniffed is how much of a file is looked at for a NUL, which no text has.
	sniffed = 8000
	// maxToolScan is how far into a file the first line of a read may be.
	maxToolScan = 256 << 20
)

// toolRead reads lines.
func toolRead(ctx context.Context, pl *place, r *cloche.ToolRead) (cloche.ToolText, error) {
	out := cloche.ToolText{Path: shown(pl.abs()), FirstLine: max(r.FirstLine, 1)}
	want := r.Lines
	switch {
	case want < 0 || want > cloche.MaxToolLines:
		return out, cloche.Invalid("lines", "%d lines were asked for", want).WithHint("1 to %d, or leave it out", cloche.MaxToolLines)
	case r.FirstLine < 0:
		return out, cloche.Invalid("first_line", "first_line is %d", r.FirstLine).WithHint("lines are counted from 1")
	case want == 0:
		want = cloche.DefaultToolLines
	}
	f, st, err := pl.open(pl.rel)
	if err != nil {
		return out, err
	}
	defer f.Close()
	out.Size = st.Size()
	in := bufio.NewReaderSize(f, cloche.MaxToolText+utf8.UTFMax)
	if head, _ := in.Peek(sniffed); bytes.IndexByte(head, 0) >= 0 {
		out.Binary = true
		return out, nil
	}
	if err := skipLines(ctx, in, out.FirstLine); err != nil {
		return out, err
	}
	var text []byte
	for out.Lines < want {
		line, err := in.ReadSlice('\n')
		if errors.Is(err, bufio.ErrBufferFull) && out.Lines == 0 {
			out.Cut = true
			out.Lines, text = 1, wholeRunes(line, cloche.MaxToolText)
			err = skipLines(ctx, in, 2)
			if err != nil {
				return out, err
			}
			break
		}
		if len(text)+len(line) > cloche.MaxToolText {
			out.More = true // and the line is not among those that were read
			break
		}
		if len(line) > 0 {
			out.Lines++
			text = append(text, line...)
		}
		if err != nil && !errors.Is(err, io.EOF) {
			return out, err
		}
		if err != nil {
			break
		}
	}
	if !out.More {
		_, err = in.Peek(1)
		out.More = err == nil
	}
	out.Content = strings.ToValidUTF8(string(text), "\uFFFD")
	return out, nil
}

// skipLines reads up to where the line with that number begins, as if the reader stood
// at the first.
func skipLines(ctx context.Context, in *bufio.Reader, number int) error {
	left, have := maxToolScan, 1
	for have < number {
		line, err := in.ReadSlice('\n')
		left -= len(line)
		switch {
		case err == nil:
			have++
		case errors.Is(err, bufio.ErrBufferFull):
		case errors.Is(err, io.EOF):
			return nil // there is nothing to read there
		default:
			return err
		}
		if left < 0 || ctx.Err() != nil {
			return cloche.Errorf(cloche.CodeTooLarge, "line %d is further into the file than is looked", number).
				WithHint("at most %d MiB are looked through; read the bytes instead", maxToolScan>>20)
		}
	}
	return nil
}

// wholeRunes is the beginning of b, without the part of a character at its end.
func wholeRunes(b []byte, n int) []byte {
	b = b[:min(len(b), n)]
	for range utf8.UTFMax - 1 {
		if r, size := utf8.DecodeLastRune(b); r != utf8.RuneError || size != 1 {
			break
		}
		b = b[:len(b)-1]
	}
	return bytes.Clone(b)
}

// shown is a path of the sandbox's as text.
func shown(name string) string { return strings.ToValidUTF8(name, "\uFFFD") }

// toolWrite replaces a file whole, or not at all.
func toolWrite(pl *place, r *cloche.ToolWrite) (cloche.ToolWritten, error) {
	out := cloche.ToolWritten{Path: shown(pl.abs()), Size: int64(len(r.Content))}
	if len(r.Content) > cloche.MaxToolWrite {
		return out, cloche.Errorf(cloche.CodeTooLarge, "the content has %d bytes", len(r.Content)).
			WithHint("at most %d; put larger files with the file API", cloche.MaxToolWrite)
	}
	old, err := pl.replaceable()
	if err != nil {
		return out, err
	}
	out.Created = old == nil
	return out, pl.replace([]byte(r.Content), old)
}

// replaceable describes the regular file that stands there, or nil where none does.
func (pl *place) replaceable() (fs.FileInfo, error) {
	if pl.rel == "." {
		return nil, unix.EISDIR
	}
	st, err := pl.root.Lstat(pl.rel)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil, nil
	case err != nil:
		return nil, err
	case st.Mode()&fs.ModeSymlink != 0:
		return nil, cloche.Invalid("path", "%.500q is a symlink", pl.abs()).WithHint("name the file that it leads to")
	case st.IsDir():
		return nil, unix.EISDIR
	case !st.Mode().IsRegular():
		return nil, cloche.Invalid("path", "%.500q is no regular file", pl.abs())
	}
	return st, nil
}

// replace writes a new file beside the old one and moves it there. With old the new one
// has its permissions and its owner, and it is a conflict when it is not old any more
// that stands there.
func (pl *place) replace(content []byte, old fs.FileInfo) error {
	dir, base := path.Split(pl.rel)
	if len(base) > unix.NAME_MAX {
		return unix.ENAMETOOLONG
	}
	var random [8]byte
	rand.Read(random[:])
	temp := dir + ".cloche-" + hex.EncodeToString(random[:])
	var f *os.File
	err := pl.as(func() (err error) {
		if dir = strings.TrimRight(dir, "/"); dir != "" {
			if err := pl.root.MkdirAll(dir, 0o755); err != nil {
				return err
			}
		}
		f, err = pl.root.OpenFile(temp, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
		return err
	})
	if err != nil {
		return err
	}
	defer f.Close()
	_, err = f.Write(content)
	if err == nil {
		err = likeOld(f, old)
	}
	if cerr := f.Close(); err == nil {
		err = cerr
	}
	if err == nil && old != nil {
		err = pl.unchanged(old)
	}
	if err == nil {
		err = pl.root.Rename(temp, pl.rel)
	}
	if err != nil {
		_ = pl.root.Remove(temp)
	}
	return err
}

// likeOld gives a new file the permissions of the one that it replaces, and its owner,
// where the agent may.
func likeOld(f *os.File, old fs.FileInfo) error {
	if old == nil {
		return chmodFile(f, 0o644)
	}
	st, ok := old.Sys().(*syscall.Stat_t)
	if !ok {
		return chmodFile(f, uint32(old.Mode().Perm()))
	}
	if err := f.Chown(int(st.Uid), int(st.Gid)); err != nil && !errors.Is(err, unix.EPERM) && !errors.Is(err, unix.EINVAL) {
		return err
	}
	return chmodFile(f, st.Mode&0o7777)
}

// unchanged looks again before a file is replaced.
func (pl *place) unchanged(old fs.FileInfo) error {
	now, err := pl.root.Lstat(pl.rel)
	if err == nil && os.SameFile(old, now) && now.Size() == old.Size() && now.ModTime().Equal(old.ModTime()) {
		return nil
	}
	return cloche.Errorf(cloche.CodeConflict, "%.500q was changed by somebody else meanwhile", pl.abs()).WithHint("read it again")
}

// toolEdit replaces text in a file.
func toolEdit(pl *place, r *cloche.ToolEdit) (cloche.ToolWritten, error) {
	out := cloche.ToolWritten{Path: shown(pl.abs())}
	switch {
	case r.Old == "":
		return out, cloche.Invalid("old", "there is no text to replace").WithHint("write makes a file; old is text that is in it")
	case r.Old == r.New:
		return out, cloche.Invalid("new", "the new text is the old one").WithHint("nothing would be changed")
	}
	old, err := pl.replaceable()
	if err != nil {
		return out, err
	}
	if old == nil {
		return out, unix.ENOENT
	}
	content, err := pl.content(old)
	if err != nil {
		return out, err
	}
	n := bytes.Count(content, []byte(r.Old))
	switch {
	case n == 0:
		return out, cloche.Invalid("old", "the text does not occur in %.500q", pl.abs()).WithHint("read the file; blanks and line breaks count")
	case n > 1 && !r.All:
		return out, cloche.Invalid("old", "the text occurs %d times in %.500q", n, pl.abs()).WithHint("give more of what stands around it, or set all")
	case len(content)+n*(len(r.New)-len(r.Old)) > cloche.MaxToolWrite:
		return out, cloche.Errorf(cloche.CodeTooLarge, "the file would be over %d bytes", cloche.MaxToolWrite)
	}
	out.Replaced, out.Line = n, 1+bytes.Count(content[:bytes.Index(content, []byte(r.Old))], []byte("\n"))
	content = bytes.ReplaceAll(content, []byte(r.Old), []byte(r.New))
	out.Size = int64(len(content))
	return out, pl.replace(content, old)
}

// content reads the file that old describes.
func (pl *place) content(old fs.FileInfo) ([]byte, error) {
	f, _, err := pl.open(pl.rel)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	content, err := io.ReadAll(io.LimitReader(f, cloche.MaxToolEdit+1))
	if err != nil {
		return nil, err
	}
	if len(content) > cloche.MaxToolEdit {
		return nil, cloche.Errorf(cloche.CodeTooLarge, "%.500q has %d bytes", pl.abs(), max(old.Size(), int64(len(content)))).
			WithHint("at most %d are edited", cloche.MaxToolEdit)
	}
	return content, nil
}
