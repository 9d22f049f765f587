//go:build linux

package gvisor

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/cloche-dev/cloche/api"

	"github.com/cloche-dev/cloche/internal/ctxio"
	"github.com/cloche-dev/cloche/internal/engine/pidfd"
	"github.com/cloche-dev/cloche/internal/hostfile"
)

// executables hands out the executable of sandboxes: the one that this build
// carries, or the one that is running. It is kept under its hash.
//
//	dir/HASH/cloche     the executable; HASH is the beginning of its hash
//	dir/HASH/note.json  its whole hash, and by what it is known without reading
//	dir/new-*           one that is being made, or was when its maker died
type executables struct {
	path string // the running one
	dir  string // empty: nothing is kept
	// carried opens the executable that this build carries; nil is the running one.
	carried func() (io.ReadCloser, error)
	log     *slog.Logger
	// everybody: another user executes it, so every user must be able to.
	everybody bool

	mu    sync.Mutex
	tried bool // kept is final
	kept  kept
	// memory has the carried executable if none can be kept.
	memory *os.File
}

// kept is the executable that is kept; without a hash no executable is kept.
type kept struct {
	hash string
	path string
	is   identity
}

// identity is by what a file is known to be the same, unchanged.
type identity struct {
	Dev   uint64 `json:"dev"`
	Ino   uint64 `json:"ino"`
	Size  int64  `json:"size"`
	Mtime int64  `json:"mtime"` // nanoseconds
	Ctime int64  `json:"ctime"` // nanoseconds
}

// note says what is in a directory of executables.
type note struct {
	Hash string `json:"sha256"`
	// From is what the executable was made from, Is what it is.
	From identity `json:"from"`
	Is   identity `json:"is"`
}

const (
	keptName   = "cloche"
	noteName   = "note.json"
	newPattern = "new-*"
	hashLetter = 16 // of the hash, in a directory's name
	noteSize   = 4096
)

// executable is an open executable, or one that is being opened.
type executable struct {
	file *os.File
	hash string // empty when it is not kept
	err  error
	done chan struct{}
}

// wait returns when the executable is open. It must be called before close.
func (x *executable) wait() error {
	<-x.done
	return x.err
}

func (x *executable) close() {
	<-x.done
	if x.file != nil {
		x.file.Close()
	}
}

// open opens the kept executable, or the running one. The first time in a home
// it takes about the time of reading it.
func (e *executables) open(ctx context.Context, own bool) *executable {
	x := &executable{done: make(chan struct{})}
	if e.carried == nil && (own || e.dir == "") {
		x.file, x.err = e.openOwn()
		close(x.done)
		return x
	}
	go func() {
		defer close(x.done)
		x.file, x.hash, x.err = e.openKept(ctx)
	}()
	return x
}

func (e *executables) openOwn() (*os.File, error) {
	f, err := os.Open(e.path)
	if err != nil {
		return nil, fmt.Errorf("open executable: %w", err)
	}
	return f, nil
}

// errNotKept means that an executable is not in the directory, or was changed there.
var errNotKept = errors.New("the executable is not kept")

// openHash opens the kept executable that has a hash, which may be the one of an earlier build.
func (e *executables) openHash(ctx context.Context, hash string) (*executable, error) {
	if e.dir == "" || len(hash) != hex.EncodedLen(sha256.Size) {
		return nil, errNotKept
	}
	f, err := os.Open(filepath.Join(e.dir, hash[:hashLetter], keptName))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, errNotKept
	}
	if err != nil {
		return nil, fmt.Errorf("open kept executable: %w", err)
	}
	found, err := hashFile(ctx, f)
	if err == nil && found != hash {
		err = errNotKept
	}
	if err != nil {
		f.Close()
		return nil, err
	}
	x := &executable{file: f, hash: hash, done: make(chan struct{})}
	close(x.done)
	return x, nil
}

// openKept falls back to the running executable, or to one in memory, when none can be kept: what
// would be lost by that is lost only when it is replaced.
func (e *executables) openKept(ctx context.Context) (*os.File, string, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for range 2 {
		if !e.tried {
			k, err := e.keep(ctx)
			if ctx.Err() != nil {
				return nil, "", ctx.Err()
			}
			if err != nil && e.dir != "" {
				e.log.Warn("the executable of sandboxes cannot be kept", "error", err)
			}
			e.kept, e.tried = k, true
		}
		if e.kept.hash == "" {
			break
		}
		f, err := os.Open(e.kept.path)
		if err == nil {
			if is, err := identify(f); err == nil && is == e.kept.is {
				return f, e.kept.hash, nil
			}
			f.Close()
		}
		e.tried = false // it was changed
	}
	if e.carried != nil {
		f, err := e.inMemory(ctx)
		return f, "", err
	}
	f, err := e.openOwn()
	return f, "", err
}

// inMemory opens a file of the carried executable that no directory holds. The caller holds mu.
func (e *executables) inMemory(ctx context.Context) (*os.File, error) {
	if e.memory == nil {
		f, err := e.unpackInMemory(ctx)
		if err != nil {
			return nil, err
		}
		e.memory = f
	}
	return reopen(e.memory)
}

func (e *executables) unpackInMemory(ctx context.Context) (*os.File, error) {
	fd, err := unix.MemfdCreate("cloche-sandbox", unix.MFD_CLOEXEC)
	if err != nil {
		return nil, os.NewSyscallError("memfd_create", err)
	}
	f := os.NewFile(uintptr(fd), "cloche-sandbox")
	defer f.Close()
	if _, err := e.unpack(ctx, f); err != nil {
		return nil, err
	}
	return reopen(f) // what can be written to is not executed
}

// reopen opens a file again, for reading.
func reopen(f *os.File) (*os.File, error) {
	return os.Open(fmt.Sprintf("/proc/self/fd/%d", pidfd.RawFD(f)))
}

// unpack writes the carried executable and returns its hash.
func (e *executables) unpack(ctx context.Context, w io.Writer) (hash string, err error) {
	r, err := e.carried()
	if err != nil {
		return "", err
	}
	defer r.Close()
	sum := sha256.New()
	if _, err := io.Copy(io.MultiWriter(w, sum), ctxio.Reader(ctx, r)); err != nil {
		return "", fmt.Errorf("unpack the executable of sandboxes: %w", err)
	}
	return hex.EncodeToString(sum.Sum(nil)), nil
}

// keep finds the kept executable, or makes it.
func (e *executables) keep(ctx context.Context) (kept, error) {
	if e.dir == "" {
		return kept{}, errors.New("there is no directory for it")
	}
	if err := os.MkdirAll(e.dir, 0o700); err != nil {
		return kept{}, fmt.Errorf("make directory of executables: %w", err)
	}
	var st unix.Statfs_t
	if err := unix.Statfs(e.dir, &st); err != nil {
		return kept{}, fmt.Errorf("look at directory of executables: %w", err)
	}
	if st.Flags&unix.ST_NOEXEC != 0 {
		return kept{}, errors.New("its file system is mounted noexec")
	}
	own, err := e.openOwn()
	if err != nil {
		return kept{}, err
	}
	defer own.Close()
	from, err := identify(own)
	if err != nil {
		return kept{}, err
	}
	for name, n := range e.notes() {
		if n.From == from {
			if k, ok := e.unchanged(name, n); ok {
				return k, nil
			}
		}
	}
	if e.carried != nil {
		return e.keepCarried(ctx, from)
	}
	hash, err := hashFile(ctx, own)
	if err != nil {
		return kept{}, err
	}
	name := hash[:hashLetter]
	if k, ok := e.adopt(ctx, name, hash, from); ok {
		return k, nil
	}
	e.discard(name)
	return e.make(ctx, own, name, hash)
}

// keepCarried unpacks the carried executable. from is the running one.
func (e *executables) keepCarried(ctx context.Context, from identity) (k kept, err error) {
	dir, err := os.MkdirTemp(e.dir, newPattern)
	if err != nil {
		return kept{}, fmt.Errorf("keep executable: %w", err)
	}
	defer func() {
		if err != nil {
			e.discard(filepath.Base(dir))
		}
	}()
	f, err := os.OpenFile(filepath.Join(dir, keptName), os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return kept{}, fmt.Errorf("keep executable: %w", err)
	}
	hash, err := e.unpack(ctx, f)
	if err == nil {
		err = errors.Join(f.Chmod(0o555), f.Sync())
	}
	is, ierr := identify(f)
	if err := errors.Join(err, ierr, f.Close()); err != nil {
		return kept{}, err
	}
	name := hash[:hashLetter]
	k = kept{hash: hash, path: filepath.Join(e.dir, name, keptName), is: is}
	if err := writeNote(dir, note{Hash: hash, From: from, Is: is}); err != nil {
		return kept{}, err
	}
	for range 2 {
		if err = os.Rename(dir, filepath.Join(e.dir, name)); err == nil {
			return k, nil
		}
		// Another process, or another build with the same one, was first, or what it has kept was changed.
		if k, ok := e.adopt(ctx, name, hash, from); ok {
			e.discard(filepath.Base(dir))
			return k, nil
		}
		e.discard(name)
	}
	return kept{}, fmt.Errorf("keep executable: %w", err)
}

// unchanged is the executable of a note, if it is still what the note says.
func (e *executables) unchanged(name string, n note) (kept, bool) {
	k := kept{hash: n.Hash, path: filepath.Join(e.dir, name, keptName), is: n.Is}
	f, err := os.Open(k.path)
	if err != nil {
		return kept{}, false
	}
	defer f.Close()
	is, err := identify(f)
	return k, err == nil && is == n.Is && n.Hash[:hashLetter] == name
}

// adopt takes what is there under the name, if it has the hash.
func (e *executables) adopt(ctx context.Context, name, hash string, from identity) (kept, bool) {
	k := kept{hash: hash, path: filepath.Join(e.dir, name, keptName)}
	f, err := os.Open(k.path)
	if err != nil {
		return kept{}, false
	}
	defer f.Close()
	found, err := hashFile(ctx, f)
	if err != nil || found != hash {
		return kept{}, false
	}
	if k.is, err = identify(f); err != nil {
		return kept{}, false
	}
	if err := writeNote(filepath.Join(e.dir, name), note{Hash: hash, From: from, Is: k.is}); err != nil {
		e.log.Warn("note of the kept executable", "error", err) // it is hashed again next time
	}
	return k, true
}

// make puts the executable under its name, whole or not at all.
func (e *executables) make(ctx context.Context, own *os.File, name, hash string) (k kept, err error) {
	dir, err := os.MkdirTemp(e.dir, newPattern)
	if err != nil {
		return kept{}, fmt.Errorf("keep executable: %w", err)
	}
	defer func() {
		if err != nil {
			e.discard(filepath.Base(dir))
		}
	}()
	if err := e.fill(ctx, own, filepath.Join(dir, keptName), hash); err != nil {
		return kept{}, fmt.Errorf("keep executable: %w", err)
	}
	f, err := os.Open(filepath.Join(dir, keptName))
	if err != nil {
		return kept{}, fmt.Errorf("keep executable: %w", err)
	}
	defer f.Close()
	k = kept{hash: hash, path: filepath.Join(e.dir, name, keptName)}
	if k.is, err = identify(f); err != nil {
		return kept{}, err
	}
	from, err := identify(own) // a link has changed it
	if err != nil {
		return kept{}, err
	}
	if err := writeNote(dir, note{Hash: hash, From: from, Is: k.is}); err != nil {
		return kept{}, err
	}
	if err := os.Rename(dir, filepath.Join(e.dir, name)); err != nil {
		return kept{}, fmt.Errorf("keep executable: %w", err)
	}
	return k, nil
}

// fill makes path the executable: by another link to it, whose mode is then the
// mode of the original, or by a copy.
func (e *executables) fill(ctx context.Context, own *os.File, path, hash string) error {
	info, err := own.Stat()
	if err != nil {
		return err
	}
	if !e.everybody || info.Mode()&0o001 != 0 {
		err := unix.Linkat(unix.AT_FDCWD, fmt.Sprintf("/proc/self/fd/%d", pidfd.RawFD(own)), unix.AT_FDCWD, path, unix.AT_SYMLINK_FOLLOW)
		if err == nil {
			return nil
		}
		// Another file system, a file of another user, or one without a name.
	}
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	sum := sha256.New()
	_, err = io.Copy(io.MultiWriter(f, sum), ctxio.Reader(ctx, io.NewSectionReader(own, 0, info.Size())))
	if err == nil && hex.EncodeToString(sum.Sum(nil)) != hash {
		err = errors.New("the executable changed while it was copied")
	}
	if err == nil {
		err = errors.Join(f.Chmod(0o555), f.Sync())
	}
	return errors.Join(err, f.Close())
}

// notes are the notes in the directory, by the name of theirs.
func (e *executables) notes() map[string]note {
	entries, err := os.ReadDir(e.dir)
	if err != nil {
		return nil
	}
	notes := map[string]note{}
	for _, entry := range entries {
		if n, ok := readNote(filepath.Join(e.dir, entry.Name())); ok {
			notes[entry.Name()] = n
		}
	}
	return notes
}

// SweepExecutables removes every kept executable that no sandbox of any owner
// uses, that no saved memory needs and that is not the running one. The memories are
// the Notes of all that are kept. It must not be called before what another
// daemon of this directory has started is known here.
func (e *Engine) SweepExecutables(memories [][]byte) error {
	used, err := e.recorded()
	if err != nil {
		return api.Errorf(api.CodeInternal, "sweep executables: %w", err)
	}
	for _, m := range memories {
		var n memoryNote
		if err := json.Unmarshal(m, &n); err == nil { // else it is another engine's
			used = append(used, n.Executable)
		}
	}
	if err := e.executables.sweep(used); err != nil {
		return api.Errorf(api.CodeInternal, "sweep executables: %w", err)
	}
	return nil
}

func (e *executables) sweep(used []string) error {
	if e.dir == "" {
		return nil
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	entries, err := os.ReadDir(e.dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	var from identity
	if own, err := e.openOwn(); err == nil {
		from, _ = identify(own)
		own.Close()
	}
	for _, entry := range entries {
		n, ok := readNote(filepath.Join(e.dir, entry.Name()))
		if ok && (n.From == from || n.Hash == e.kept.hash || slices.Contains(used, n.Hash)) {
			continue
		}
		e.discard(entry.Name())
	}
	return nil
}

// discard removes one directory. What else is in it is not ours, and stays.
func (e *executables) discard(name string) {
	dir := filepath.Join(e.dir, name)
	entries, _ := os.ReadDir(dir)
	for _, entry := range entries {
		if file := entry.Name(); file == keptName || file == noteName || strings.HasPrefix(file, noteName) && hostfile.IsTemp(file) {
			_ = os.Remove(filepath.Join(dir, file))
		}
	}
	_ = os.Remove(dir)
}

func identify(f *os.File) (identity, error) {
	var st unix.Stat_t
	if err := unix.Fstat(int(pidfd.RawFD(f)), &st); err != nil {
		return identity{}, fmt.Errorf("look at executable: %w", err)
	}
	return identity{
		Dev: uint64(st.Dev), Ino: st.Ino, Size: st.Size, Mtime: st.Mtim.Nano(), Ctime: st.Ctim.Nano(),
	}, nil
}

func hashFile(ctx context.Context, f *os.File) (string, error) {
	sum := sha256.New()
	if _, err := io.Copy(sum, ctxio.Reader(ctx, io.NewSectionReader(f, 0, 1<<62))); err != nil {
		return "", fmt.Errorf("hash executable: %w", err)
	}
	return hex.EncodeToString(sum.Sum(nil)), nil
}

func readNote(dir string) (note, bool) {
	f, err := os.Open(filepath.Join(dir, noteName))
	if err != nil {
		return note{}, false
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, noteSize))
	if err != nil {
		return note{}, false
	}
	var n note
	err = json.Unmarshal(b, &n)
	raw, hexErr := hex.DecodeString(n.Hash)
	return n, err == nil && hexErr == nil && len(raw) == sha256.Size && strings.HasPrefix(n.Hash, filepath.Base(dir))
}

func writeNote(dir string, n note) error {
	b, err := json.Marshal(n)
	if err != nil {
		return err
	}
	if err := hostfile.ReplaceIn(dir, noteName, b); err != nil {
		return fmt.Errorf("write note: %w", err)
	}
	return nil
}
