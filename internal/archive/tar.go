package archive

import (
	"archive/tar"
	"errors"
	"io"
	"strings"

	"github.com/cloche-dev/cloche/api"
)

// Reader yields the entries of one archive, in the archive's order. It is not
// safe for concurrent use.
type Reader struct {
	src    *tarSource
	budget *Budget
	// left is what is still to be read of the present file.
	left  int64
	ended bool
	err   error
}

// TarOptions say how to read a tar.
type TarOptions struct {
	Limits Limits
	// Budget, when set, replaces Limits: it is shared with other archives.
	Budget *Budget
	// Plain, when set, gets every byte of the uncompressed tar, to its very end
	// when Next has said io.EOF.
	Plain io.Writer
}

// OpenTar reads a tar, compressed or not. Close frees what it needs and leaves r
// alone.
func OpenTar(r io.Reader, o TarOptions) (*Reader, error) {
	if o.Budget == nil {
		o.Budget = NewBudget(o.Limits)
	}
	in := &counter{r: r}
	z, err := Decompress(in)
	if err != nil {
		return nil, err
	}
	s := &tarSource{in: in, z: z, budget: o.Budget}
	s.out = &counter{r: z}
	s.plain = s.out
	if o.Plain != nil {
		s.plain = io.TeeReader(s.out, o.Plain)
	}
	s.tar = tar.NewReader(checked{s})
	return &Reader{src: s, budget: o.Budget}, nil
}

// Next goes to the next entry, also when the content of the present one has not
// been read. After the last entry it says io.EOF.
func (r *Reader) Next() (Entry, error) {
	if r.err != nil {
		return Entry{}, r.err
	}
	e, err := r.next()
	if err != nil {
		r.err = err
	}
	return e, err
}

func (r *Reader) next() (Entry, error) {
	e, err := r.src.next()
	if err != nil {
		return Entry{}, classify(err)
	}
	if err := r.src.check(r.budget); err != nil {
		return Entry{}, err
	}
	if e, err = validate(e, r.budget); err != nil {
		return Entry{}, err
	}
	r.left, r.ended = e.Size, e.Kind != File
	return e, nil
}

// validate makes the paths of an entry clean and takes it from the budget.
func validate(e Entry, b *Budget) (_ Entry, err error) {
	name := e.Path
	if e.Path, err = cleanPath(name, b.limits); err != nil {
		return Entry{}, err
	}
	if e.Kind != File {
		e.Size = 0
	}
	if err := b.entry(name, e.Target, e.Size); err != nil {
		return Entry{}, err
	}
	switch e.Kind {
	case Symlink:
		err = checkTarget(name, e.Target)
	case HardLink:
		e.Target, err = cleanPath(e.Target, b.limits)
	}
	if err != nil {
		return Entry{}, err
	}
	if e.Path == "." && e.Kind != Dir {
		return Entry{}, broken("its root is a %s", e.Kind)
	}
	return e, nil
}

// Read reads the content of the file that Next went to: as many bytes as its
// size says, or an error.
func (r *Reader) Read(p []byte) (int, error) {
	switch {
	case r.err != nil:
		return 0, r.err
	case r.left == 0 && r.ended:
		return 0, io.EOF
	case len(p) == 0:
		return 0, nil
	}
	n, err := 0, error(nil)
	if r.left > 0 {
		n, err = r.src.Read(p[:min(int64(len(p)), r.left)])
		r.left -= int64(n)
	}
	if errors.Is(err, io.EOF) && r.left > 0 {
		err = io.ErrUnexpectedEOF
	}
	if r.left == 0 && (err == nil || errors.Is(err, io.EOF)) {
		// A checksum is compared by who reads on.
		err = r.end()
	}
	if err == nil {
		err = r.src.check(r.budget)
	}
	if err != nil {
		r.err = classify(err)
		return n, r.err
	}
	if n == 0 && r.left == 0 {
		return 0, io.EOF
	}
	return n, nil
}

// end sees to it that nothing follows the content of the present file.
func (r *Reader) end() error {
	r.ended = true
	n, err := r.src.Read(make([]byte, 1))
	switch {
	case n > 0:
		return broken("a file is longer than it says")
	case errors.Is(err, io.EOF):
		return nil
	}
	return err
}

// Close frees what the reader needs.
func (r *Reader) Close() error { return r.src.Close() }

// classify turns what a decoder says into what a caller may read. What the
// source of the archive said itself stays to be seen by errors.Is.
func classify(err error) error {
	if errors.Is(err, io.EOF) {
		return err
	}
	if ours, ok := errors.AsType[*api.Error](err); ok {
		return ours
	}
	if errors.Is(err, io.ErrUnexpectedEOF) {
		return broken("it ends too early").WithCause(err)
	}
	return broken("it cannot be read").WithCause(err)
}

type tarSource struct {
	in, out *counter
	z       io.ReadCloser
	plain   io.Reader
	tar     *tar.Reader
	budget  *Budget
	// content is what files had: more than out when they are sparse.
	content int64
}

// checked is what the tar reader reads from: a bomb is noticed also where it is
// in what the tar reader skips.
type checked struct{ s *tarSource }

func (c checked) Read(p []byte) (int, error) {
	n, err := c.s.plain.Read(p)
	if cerr := c.s.check(c.s.budget); cerr != nil {
		return 0, cerr
	}
	return n, err
}

func (s *tarSource) check(b *Budget) error { return b.unfolded(s.in.n, max(s.out.n, s.content)) }

func (s *tarSource) Read(p []byte) (int, error) {
	n, err := s.tar.Read(p)
	s.content += int64(n)
	return n, err
}

func (s *tarSource) Close() error { return s.z.Close() }

func (s *tarSource) next() (Entry, error) {
	for {
		h, err := s.tar.Next()
		if errors.Is(err, io.EOF) {
			// What follows the end belongs to the digest of the whole, and a gzip's
			// checksum stands behind it.
			if _, err := io.Copy(io.Discard, checked{s}); err != nil {
				return Entry{}, err
			}
			return Entry{}, io.EOF
		}
		if err != nil {
			return Entry{}, err
		}
		if h.Typeflag == tar.TypeXGlobalHeader {
			// Each is an entry as far as the effort goes.
			if err := s.budget.entry("", "", 0); err != nil {
				return Entry{}, err
			}
			continue
		}
		return tarEntry(h)
	}
}

func tarEntry(h *tar.Header) (Entry, error) {
	e := Entry{Path: h.Name, Mode: uint32(h.Mode) & 0o7777, ModTime: h.ModTime, Size: h.Size}
	if h.Uid < 0 || h.Gid < 0 || h.Uid > maxID || h.Gid > maxID {
		return Entry{}, broken("%q belongs to %d:%d, which are no ids", clip(h.Name), h.Uid, h.Gid)
	}
	e.UID, e.GID = uint32(h.Uid), uint32(h.Gid)
	switch h.Typeflag {
	case tar.TypeReg, tar.TypeGNUSparse, tar.TypeCont:
		e.Kind = File
		if strings.HasSuffix(h.Name, "/") { // what old tars call a directory
			e.Kind = Dir
		}
	case tar.TypeDir:
		e.Kind = Dir
	case tar.TypeSymlink:
		e.Kind, e.Target = Symlink, h.Linkname
	case tar.TypeLink:
		e.Kind, e.Target = HardLink, h.Linkname
	case tar.TypeChar, tar.TypeBlock:
		e.Kind = Device
		e.Whiteout = h.Typeflag == tar.TypeChar && h.Devmajor == 0 && h.Devminor == 0
	case tar.TypeFifo:
		e.Kind = FIFO
	default:
		return Entry{}, broken("%q is of the unknown type %q", clip(h.Name), h.Typeflag)
	}
	for key, value := range h.PAXRecords {
		if name, ok := strings.CutPrefix(key, "SCHILY.xattr."); ok {
			if e.Xattrs == nil {
				e.Xattrs = map[string]string{}
			}
			e.Xattrs[name] = value
		}
	}
	return e, nil
}
