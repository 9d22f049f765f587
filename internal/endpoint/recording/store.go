package recording

import (
	"bufio"
	"bytes"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/cloche-dev/cloche/api"
)

const (
	// maxPerTenant and maxTenantBytes bound what a tenant has, maxBytes one recording.
	maxPerTenant   = 200
	maxTenantBytes = 2 << 30
	maxBytes       = 256 << 20
	maxExchanges   = 100_000
	suffix         = ".jsonl"
	partSuffix     = ".part"
)

// Store keeps recordings in a directory of its own: one below it for each tenant. Its
// methods are safe for any number of goroutines.
type Store struct {
	root *os.Root

	mu sync.Mutex
	// active are those that are being made, by file.
	active map[string]*Writer
}

// Open opens a store in a directory, which it makes where it is missing.
func Open(dir string) (*Store, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("make directory of recordings: %w", err)
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		return nil, fmt.Errorf("open directory of recordings: %w", err)
	}
	return &Store{root: root, active: map[string]*Writer{}}, nil
}

// Close gives up the directory.
func (s *Store) Close() error { return s.root.Close() }

// dirOf is the directory of a tenant, whose name may be anything.
func dirOf(tenant string) string { return "t-" + hex.EncodeToString([]byte(tenant)) }

func fileOf(tenant, name string) string { return dirOf(tenant) + "/" + name + suffix }

func none(name string) error {
	return api.Errorf(api.CodeNotFound, "there is no recording %.80q", name).WithHint("cloche recording ls lists them")
}

func checkName(name string) error {
	if !api.ValidName(name) {
		return api.Invalid("name", "%.80q cannot name a recording", name).WithHint("use 1 to 64 of a-z, 0-9, '-', '_' and '.', beginning with a letter or digit")
	}
	return nil
}

// names are those of a tenant's recordings with their sizes.
func (s *Store) names(tenant string) (map[string]int64, error) {
	entries, err := fs.ReadDir(s.root.FS(), dirOf(tenant))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("list recordings: %w", err)
	}
	out := map[string]int64{}
	for _, e := range entries {
		name, ok := strings.CutSuffix(e.Name(), suffix)
		if fi, err := e.Info(); err == nil && ok && api.ValidName(name) {
			out[name] = fi.Size()
		}
	}
	return out, nil
}

// room says why a tenant can have no other recording. The caller holds mu.
func (s *Store) room(tenant string) error {
	all, err := s.names(tenant)
	if err != nil {
		return err
	}
	var bytes int64
	for _, n := range all {
		bytes += n
	}
	if len(all) >= maxPerTenant || bytes >= maxTenantBytes {
		return api.Errorf(api.CodeNoCapacity, "there are %d recordings of %d bytes, and at most %d of %d are kept", len(all), bytes, maxPerTenant, int64(maxTenantBytes)).
			WithHint("remove some with cloche recording rm")
	}
	return nil
}

// List tells of the recordings of a tenant, by name.
func (s *Store) List(tenant string) ([]api.RecordingInfo, error) {
	s.mu.Lock()
	all, err := s.names(tenant)
	s.mu.Unlock()
	if err != nil {
		return nil, err
	}
	out := []api.RecordingInfo{}
	for name := range all {
		info, err := s.Info(tenant, name)
		if api.CodeOf(err) == api.CodeNotFound {
			continue
		}
		if err != nil {
			return nil, err
		}
		out = append(out, info)
	}
	slices.SortFunc(out, func(a, b api.RecordingInfo) int { return strings.Compare(a.Name, b.Name) })
	return out, nil
}

// Info tells of one.
func (s *Store) Info(tenant, name string) (api.RecordingInfo, error) {
	f, err := s.Read(tenant, name)
	if err != nil {
		return api.RecordingInfo{}, err
	}
	defer f.Close()
	info := api.RecordingInfo{Name: name, Tenant: tenant}
	fi, err := f.Stat()
	if err != nil {
		return info, fmt.Errorf("look at recording: %w", err)
	}
	info.Bytes = fi.Size()
	in := bufio.NewReaderSize(f, 64<<10)
	var h head
	for n := 1; ; n++ {
		line, err := readLine(in)
		if errors.Is(err, io.EOF) {
			break
		}
		switch {
		case err != nil:
			return info, damaged(name, err)
		case n == 1:
			if err := json.Unmarshal(line, &h); err != nil {
				return info, damaged(name, err)
			}
		case bytes.Contains(line, []byte(`"omitted":"`)): // in a string its quotes are escaped
			info.Omitted++
		default:
			info.Exchanges++
		}
	}
	info.Sandbox, info.Endpoint, info.CreatedAt = h.Sandbox, h.Endpoint, h.Created
	s.mu.Lock()
	_, info.Active = s.active[fileOf(tenant, name)]
	s.mu.Unlock()
	return info, nil
}

func damaged(name string, err error) error {
	return api.Errorf(api.CodeInternal, "recording %s cannot be read", name).WithCause(err)
}

// Read opens the file of a recording, as far as it has been made.
func (s *Store) Read(tenant, name string) (*os.File, error) {
	if err := checkName(name); err != nil {
		return nil, err
	}
	f, err := s.root.Open(fileOf(tenant, name))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, none(name)
	}
	if err != nil {
		return nil, fmt.Errorf("open recording: %w", err)
	}
	return f, nil
}

// Remove takes one away. Who replays it goes on.
func (s *Store) Remove(tenant, name string) error {
	if err := checkName(name); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.active[fileOf(tenant, name)] != nil {
		return api.Errorf(api.CodeState, "recording %s is being made", name).WithHint("remove the endpoint that makes it first")
	}
	if err := s.root.Remove(fileOf(tenant, name)); errors.Is(err, fs.ErrNotExist) {
		return none(name)
	} else if err != nil {
		return fmt.Errorf("remove recording: %w", err)
	}
	return nil
}

// Put keeps a recording that was made elsewhere. What is wrong with it is said by line.
func (s *Store) Put(tenant, name string, r io.Reader) (api.RecordingInfo, error) {
	if err := checkName(name); err != nil {
		return api.RecordingInfo{}, err
	}
	s.mu.Lock()
	err := s.room(tenant)
	if err == nil {
		err = s.root.MkdirAll(dirOf(tenant), 0o700)
	}
	s.mu.Unlock()
	if err != nil {
		return api.RecordingInfo{}, err
	}
	part := fileOf(tenant, name) + "." + api.NewID("p-") + partSuffix
	f, err := s.root.OpenFile(part, os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return api.RecordingInfo{}, fmt.Errorf("make recording: %w", err)
	}
	defer func() { _ = s.root.Remove(part) }() // it was moved, or is nothing
	defer f.Close()
	if err := write(f, name, r); err != nil {
		return api.RecordingInfo{}, err
	}
	if err := f.Sync(); err != nil {
		return api.RecordingInfo{}, fmt.Errorf("keep recording: %w", err)
	}
	s.mu.Lock()
	if _, err = s.root.Stat(fileOf(tenant, name)); err == nil {
		err = exists(name)
	} else if err = s.root.Rename(part, fileOf(tenant, name)); err != nil {
		err = fmt.Errorf("keep recording: %w", err)
	}
	s.mu.Unlock()
	if err != nil {
		return api.RecordingInfo{}, err
	}
	return s.Info(tenant, name)
}

func exists(name string) error {
	err := api.Errorf(api.CodeExists, "there is a recording %s", name).WithHint("choose another name, or remove it with cloche recording rm %s", name)
	err.Field = "record"
	return err
}

// write copies a recording to a file, each line as it was understood.
func write(f *os.File, name string, r io.Reader) error {
	out := bufio.NewWriter(f)
	if err := encode(out, head{Recording: format, Name: name, Created: time.Now().UTC()}); err != nil {
		return err
	}
	left := int64(maxBytes)
	n := 0
	_, _, err := scan(io.LimitReader(r, maxBytes+1), func(x Exchange, _ int64, size int) error {
		if left -= int64(size); left < 0 || n >= maxExchanges {
			return api.Errorf(api.CodeTooLarge, "a recording is at most %d bytes and %d exchanges", int64(maxBytes), maxExchanges)
		}
		n++
		return encode(out, x)
	})
	switch {
	case errors.Is(err, errMalformed), errors.Is(err, errTorn):
		return api.Invalid("body", "this is no recording: %v", err).WithHint("put what cloche recording get wrote")
	case err != nil:
		return err
	}
	if err := out.Flush(); err != nil {
		return fmt.Errorf("write recording: %w", err)
	}
	return nil
}

func encode(w io.Writer, v any) error {
	enc := json.NewEncoder(w)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(v); err != nil {
		return fmt.Errorf("write recording: %w", err)
	}
	return nil
}

// errTorn: the last line has no end, as when a daemon was killed over it.
var errTorn = errors.New("the last line is not whole")

// scan reads a recording. each gets an exchange with the offset and size of its line.
// It returns how far the whole lines go.
func scan(r io.Reader, each func(x Exchange, off int64, size int) error) (head, int64, error) {
	in := bufio.NewReaderSize(r, 64<<10)
	var h head
	var off int64
	for n := 1; ; n++ {
		line, err := readLine(in)
		if errors.Is(err, io.EOF) && len(line) == 0 && n > 1 {
			return h, off, nil
		}
		if errors.Is(err, io.EOF) {
			return h, off, fmt.Errorf("line %d: %w", n, errTorn)
		}
		if err != nil {
			return h, off, fmt.Errorf("line %d: %w", n, err)
		}
		if n == 1 {
			if json.Unmarshal(line, &h) != nil || h.Recording != format {
				return h, off, fmt.Errorf("line 1: %w", malformed("it does not begin as one of version %d does", format))
			}
		} else {
			x, err := parse(line)
			if err == nil {
				err = each(x, off, len(line))
			}
			if err != nil {
				return h, off, fmt.Errorf("line %d: %w", n, err)
			}
		}
		off += int64(len(line))
	}
}

// readLine reads a line with its end; io.EOF is that it has none.
func readLine(in *bufio.Reader) ([]byte, error) {
	var line []byte
	for {
		part, err := in.ReadSlice('\n')
		if len(line)+len(part) > maxLine {
			return nil, malformed("it is longer than %d bytes", maxLine)
		}
		line = append(line, part...)
		if !errors.Is(err, bufio.ErrBufferFull) {
			return line, err
		}
	}
}

// Writer makes a recording. Its methods are safe for any number of goroutines.
type Writer struct {
	s   *Store
	key string

	mu    sync.Mutex
	f     *os.File
	n     int64 // of the last exchange that began
	count int
	size  int64
	full  bool
}

// Record begins a recording, or goes on with one that the same endpoint of the same
// sandbox made.
func (s *Store) Record(tenant, name, sandbox, endpoint string) (*Writer, error) {
	if err := checkName(name); err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	key := fileOf(tenant, name)
	if s.active[key] != nil {
		return nil, exists(name)
	}
	w := &Writer{s: s, key: key}
	f, err := s.root.OpenFile(key, os.O_RDWR|os.O_APPEND, 0)
	switch {
	case err == nil:
		if err := w.resume(f, name, sandbox, endpoint); err != nil {
			f.Close()
			return nil, err
		}
	case errors.Is(err, fs.ErrNotExist):
		if err := s.room(tenant); err != nil {
			return nil, err
		}
		if err := s.root.MkdirAll(dirOf(tenant), 0o700); err != nil {
			return nil, fmt.Errorf("make recording: %w", err)
		}
		if f, err = s.root.OpenFile(key, os.O_RDWR|os.O_APPEND|os.O_CREATE|os.O_EXCL, 0o600); err != nil {
			return nil, fmt.Errorf("make recording: %w", err)
		}
		if err := encode(f, head{Recording: format, Name: name, Sandbox: sandbox, Endpoint: endpoint, Created: time.Now().UTC()}); err != nil {
			f.Close()
			return nil, err
		}
	default:
		return nil, fmt.Errorf("open recording: %w", err)
	}
	w.f = f
	s.active[key] = w
	return w, nil
}

// resume finds where a recording ends, and takes off what a death left half written.
func (w *Writer) resume(f *os.File, name, sandbox, endpoint string) error {
	h, end, err := scan(f, func(x Exchange, _ int64, _ int) error {
		w.n, w.count = max(w.n, x.N), w.count+1
		return nil
	})
	if err != nil && !errors.Is(err, errTorn) {
		return damaged(name, err)
	}
	if h.Sandbox != sandbox || h.Endpoint != endpoint || sandbox == "" {
		return exists(name)
	}
	if errors.Is(err, errTorn) {
		if err := f.Truncate(end); err != nil {
			return fmt.Errorf("repair recording: %w", err)
		}
	}
	if fi, err := f.Stat(); err == nil {
		w.size = fi.Size()
	}
	return nil
}

// Begin counts a request, and is what its exchange has as N.
func (w *Writer) Begin() int64 {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.n++
	return w.n
}

// Keep puts an exchange into the recording. False is that it is full, or cannot be
// written: then nothing more is.
func (w *Writer) Keep(x Exchange) bool {
	var line bytes.Buffer
	err := encode(&line, x)
	w.mu.Lock()
	defer w.mu.Unlock()
	if err != nil || line.Len() > maxLine || w.full || w.f == nil || w.count >= maxExchanges || w.size+int64(line.Len()) > maxBytes {
		w.full = true
		return false
	}
	n, err := w.f.Write(line.Bytes())
	w.size += int64(n)
	w.count++
	w.full = err != nil
	return err == nil
}

// Close ends the recording. One in which nothing is does not stay.
func (w *Writer) Close() error {
	w.s.mu.Lock()
	defer w.s.mu.Unlock()
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.f == nil {
		return nil
	}
	delete(w.s.active, w.key)
	err := w.f.Close()
	w.f = nil
	if w.count == 0 && err == nil {
		err = w.s.root.Remove(w.key)
	}
	if err != nil {
		return fmt.Errorf("close recording: %w", err)
	}
	return nil
}
