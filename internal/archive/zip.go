package archive

import (
	"archive/zip"
	"errors"
	"io"
	"io/fs"
	"strings"

	"github.com/cloche-dev/cloche/api"
)

// OpenZip reads a zip of size bytes.
func OpenZip(r io.ReaderAt, size int64, l Limits) (*Reader, error) {
	b := NewBudget(l)
	z, err := zip.NewReader(r, size)
	if err != nil && !errors.Is(err, zip.ErrInsecurePath) {
		return nil, broken("it is no zip").WithCause(err)
	}
	if int64(len(z.File)) > b.limits.Entries {
		return nil, tooLarge("it has more than %d entries", b.limits.Entries)
	}
	return &Reader{src: &zipSource{files: z.File, size: size}, budget: b}, nil
}

type zipSource struct {
	files []*zip.File
	// size is of the archive: how much of it an entry uses is what the entry says.
	size int64
	out  int64
	body io.ReadCloser
}

func (s *zipSource) next() (Entry, error) {
	if err := s.Close(); err != nil {
		return Entry{}, err
	}
	if len(s.files) == 0 {
		return Entry{}, io.EOF
	}
	f := s.files[0]
	s.files = s.files[1:]
	name, mode := f.Name, f.Mode()
	if maker := f.CreatorVersion >> 8; maker == 0 || maker == 10 || maker == 11 || maker == 14 {
		// Made by a program that writes the separators of DOS and Windows, and knows
		// no permissions.
		name = strings.ReplaceAll(name, `\`, "/")
		mode = mode.Type()
	}
	e := Entry{Path: name, ModTime: f.Modified, Size: int64(f.UncompressedSize64)}
	e.Mode = uint32(mode.Perm())
	if f.Flags&1 != 0 {
		return Entry{}, api.Errorf(api.CodeUnsupported, "archive: %q is encrypted", clip(name))
	}
	switch {
	case strings.HasSuffix(name, "/") || mode.IsDir():
		e.Kind = Dir
		if e.Mode == 0 {
			e.Mode = 0o755
		}
	case mode&fs.ModeSymlink != 0:
		target, err := s.symlink(f)
		if err != nil {
			return Entry{}, err
		}
		e.Kind, e.Target = Symlink, target
	case mode&fs.ModeDevice != 0:
		e.Kind = Device
	case mode&fs.ModeNamedPipe != 0:
		e.Kind = FIFO
	case mode&fs.ModeSocket != 0:
		e.Kind = Socket
	default:
		e.Kind = File
		if e.Mode == 0 {
			e.Mode = 0o644
		}
		body, err := open(f)
		if err != nil {
			return Entry{}, err
		}
		s.body = body
	}
	return e, nil
}

// symlink reads the target of a symlink, which is its content.
func (s *zipSource) symlink(f *zip.File) (string, error) {
	body, err := open(f)
	if err != nil {
		return "", err
	}
	defer body.Close()
	target, err := io.ReadAll(io.LimitReader(body, maxTarget+1))
	if err != nil {
		return "", err
	}
	return string(target), nil
}

func open(f *zip.File) (io.ReadCloser, error) {
	body, err := f.Open()
	if errors.Is(err, zip.ErrAlgorithm) {
		return nil, api.Errorf(api.CodeUnsupported, "archive: %q is compressed with method %d", clip(f.Name), f.Method).
			WithHint("store or deflate it")
	}
	return body, err
}

func (s *zipSource) Read(p []byte) (int, error) {
	if s.body == nil {
		return 0, io.EOF
	}
	n, err := s.body.Read(p)
	s.out += int64(n)
	return n, err
}

func (s *zipSource) check(b *Budget) error { return b.unfolded(s.size, s.out) }

func (s *zipSource) Close() error {
	if s.body == nil {
		return nil
	}
	err := s.body.Close()
	s.body = nil
	return err
}
