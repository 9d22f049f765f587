//go:build linux

package tools

import (
	"bufio"
	"bytes"
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"io"
	"os"
	"strings"
	"unicode/utf8"

	"golang.org/x/sys/unix"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/agent/guest/pathwalk"
)

const (
	// sniffed is how much of a file is looked at for a NUL, which no text has.
	sniffed = 8000
	// maxToolScan is how far into a file the first line of a read may be.
	maxToolScan = 256 << 20
)

// toolRead reads lines.
func toolRead(ctx context.Context, pl *place, r *api.ToolRead) (api.ToolText, error) {
	out := api.ToolText{Path: pathwalk.Text(pl.abs()), FirstLine: max(r.FirstLine, 1)}
	want := r.Lines
	switch {
	case want < 0 || want > api.MaxToolLines:
		return out, api.Invalid("lines", "%d lines were asked for", want).WithHint("1 to %d, or leave it out", api.MaxToolLines)
	case r.FirstLine < 0:
		return out, api.Invalid("first_line", "first_line is %d", r.FirstLine).WithHint("lines are counted from 1")
	case want == 0:
		want = api.DefaultToolLines
	}
	f, st, err := pl.open(pl.rel)
	if err != nil {
		return out, err
	}
	defer f.Close()
	out.Size = st.Size()
	in := bufio.NewReaderSize(f, api.MaxToolText+utf8.UTFMax)
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
			out.Lines, text = 1, wholeRunes(line, api.MaxToolText)
			err = skipLines(ctx, in, 2)
			if err != nil {
				return out, err
			}
			break
		}
		if len(text)+len(line) > api.MaxToolText {
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
			return api.Errorf(api.CodeTooLarge, "line %d is further into the file than is looked", number).
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

// toolWrite replaces a file whole, or not at all.
func toolWrite(pl *place, r *api.ToolWrite) (api.ToolWritten, error) {
	out := api.ToolWritten{Path: pathwalk.Text(pl.abs()), Size: int64(len(r.Content))}
	if len(r.Content) > api.MaxToolWrite {
		return out, api.Errorf(api.CodeTooLarge, "the content has %d bytes", len(r.Content)).
			WithHint("at most %d; put larger files with the file API", api.MaxToolWrite)
	}
	old, err := pl.replaceable()
	if err != nil {
		return out, err
	}
	defer old.Close()
	out.Created = !old.Exists
	return out, pl.replace([]byte(r.Content), old)
}

// replaceable finds the regular file that is to be replaced, or where it is to be.
func (pl *place) replaceable() (*pathwalk.Location, error) {
	s, err := pl.find(pl.rel, false)
	if err != nil {
		return nil, err
	}
	kind := s.Stat.Mode & unix.S_IFMT
	switch {
	case pl.rel == "." || s.IsDir():
		err = unix.EISDIR
	case !s.Exists && len(s.Name) > unix.NAME_MAX:
		err = unix.ENAMETOOLONG
	case s.Exists && kind == unix.S_IFLNK:
		err = api.Invalid("path", "%.500q is a symlink", pl.abs()).WithHint("name the file that it leads to")
	case s.Exists && kind != unix.S_IFREG:
		err = api.Invalid("path", "%.500q is no regular file", pl.abs())
	}
	if err != nil {
		s.Close()
		return nil, err
	}
	return s, nil
}

// replace writes a new file beside what is at s and moves it there. It has the permissions
// and the owner of a file that is there, and it is a conflict when that is not the same any
// more.
func (pl *place) replace(content []byte, s *pathwalk.Location) error {
	var random [8]byte
	rand.Read(random[:])
	temp := ".cloche-" + hex.EncodeToString(random[:])
	var f *os.File
	err := pl.as(func() (err error) {
		if err := s.Parents(); err != nil {
			return err
		}
		f, err = pathwalk.OpenAt(s.Dir(), temp, unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL|unix.O_NOFOLLOW, 0o600)
		return err
	})
	if err != nil {
		return err
	}
	defer f.Close()
	_, err = f.Write(content)
	if err == nil {
		err = likeOld(f, s)
	}
	if cerr := f.Close(); err == nil {
		err = cerr
	}
	if err == nil && s.Exists {
		err = pl.unchanged(s)
	}
	if err == nil {
		err = unix.Renameat(s.Dir(), temp, s.Dir(), s.Name)
	}
	if err != nil {
		_ = unix.Unlinkat(s.Dir(), temp, 0)
	}
	return err
}

// likeOld gives a new file the permissions of the one that it replaces, and its owner,
// where the agent may.
func likeOld(f *os.File, s *pathwalk.Location) error {
	if !s.Exists {
		return pathwalk.SetModeOf(f, 0o644)
	}
	if err := f.Chown(int(s.Stat.Uid), int(s.Stat.Gid)); err != nil && !errors.Is(err, unix.EPERM) && !errors.Is(err, unix.EINVAL) {
		return err
	}
	return pathwalk.SetModeOf(f, s.Stat.Mode&0o7777)
}

// unchanged looks again before a file is replaced.
func (pl *place) unchanged(s *pathwalk.Location) error {
	var now unix.Stat_t
	err := unix.Fstatat(s.Dir(), s.Name, &now, unix.AT_SYMLINK_NOFOLLOW)
	if err == nil && pathwalk.FileIDOf(&now) == pathwalk.FileIDOf(&s.Stat) && now.Size == s.Stat.Size && now.Mtim == s.Stat.Mtim {
		return nil
	}
	return api.Errorf(api.CodeConflict, "%.500q was changed by another process meanwhile", pl.abs()).WithHint("read it again")
}

// toolEdit replaces text in a file.
func toolEdit(pl *place, r *api.ToolEdit) (api.ToolWritten, error) {
	out := api.ToolWritten{Path: pathwalk.Text(pl.abs())}
	switch {
	case r.Old == "":
		return out, api.Invalid("old", "there is no text to replace").WithHint("write makes a file; old is text that is in it")
	case r.Old == r.New:
		return out, api.Invalid("new", "the new text is the old one").WithHint("nothing would be changed")
	}
	old, err := pl.replaceable()
	if err != nil {
		return out, err
	}
	defer old.Close()
	if !old.Exists {
		return out, unix.ENOENT
	}
	content, err := pl.content(old)
	if err != nil {
		return out, err
	}
	n := bytes.Count(content, []byte(r.Old))
	switch {
	case n == 0:
		return out, api.Invalid("old", "the text does not occur in %.500q", pl.abs()).WithHint("read the file; blanks and line breaks count")
	case n > 1 && !r.All:
		return out, api.Invalid("old", "the text occurs %d times in %.500q", n, pl.abs()).WithHint("give more of what stands around it, or set all")
	case len(content)+n*(len(r.New)-len(r.Old)) > api.MaxToolWrite:
		return out, api.Errorf(api.CodeTooLarge, "the file would be over %d bytes", api.MaxToolWrite)
	}
	out.Replaced, out.Line = n, 1+bytes.Count(content[:bytes.Index(content, []byte(r.Old))], []byte("\n"))
	content = bytes.ReplaceAll(content, []byte(r.Old), []byte(r.New))
	out.Size = int64(len(content))
	return out, pl.replace(content, old)
}

// content reads the file at s.
func (pl *place) content(s *pathwalk.Location) ([]byte, error) {
	f, err := s.Open(unix.O_RDONLY, 0)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	content, err := io.ReadAll(io.LimitReader(f, api.MaxToolEdit+1))
	if err != nil {
		return nil, err
	}
	if len(content) > api.MaxToolEdit {
		return nil, api.Errorf(api.CodeTooLarge, "%.500q has %d bytes", pl.abs(), max(s.Stat.Size, int64(len(content)))).
			WithHint("at most %d are edited", api.MaxToolEdit)
	}
	return content, nil
}
