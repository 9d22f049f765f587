//go:build linux

package fsop

import (
	"bytes"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"hash"
	"io"
	"os"
	"path"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/agent/guest/pathwalk"
	"github.com/cloche-dev/cloche/internal/archive"
	"github.com/cloche-dev/cloche/internal/archive/pack"
)

// An atomic import survives a kill at every moment. Its directory in the target has
//
//	new/       what the archive brought and is not in place yet
//	old/       what was in the target and had to go
//	journal    all moves, on the disk before the first of them
//	committed  the journal, renamed once all moves are made
//
// and recoverImports reads from these how far the import came: with a journal the moves
// are undone, with committed only the directory is left to remove, and without either
// nothing has moved. What is in old/ is removed after the commit only. Modes and times of
// directories that were there before are not restored after a kill.
//
// Programs in the sandbox can make such a directory themselves. Recovery has the rights
// of the programs of the directory's owner and no more, follows no symlink, and changes
// names in the target only: what it can be made to do, that user's programs can do.
const (
	newName       = "new"
	oldName       = "old"
	journalName   = "journal"
	committedName = "committed"
)

// Bounds of a journal.
const (
	maxJournal = 64 << 20
	maxMoves   = 1_000_000
)

const (
	// beatEvery is how often a living import renews the time of its directory. Kernels
	// that share a directory do not always share its locks, so that a directory counts
	// as left only when it is not locked and was not renewed for deadAfter.
	beatEvery = 3 * time.Second
	deadAfter = 15 * time.Second
	// maxRecovery bounds how long one import waits for others to be dead.
	maxRecovery = 20 * time.Second
	// maxStagings bounds the directories that one import looks at.
	maxStagings = 1000
)

var (
	// errStopped ends an import or a recovery as a kill does.
	errStopped = errors.New("stopped by a test")
	// errTorn is about a journal that was not written to its end.
	errTorn = errors.New("the journal is not whole")
	// errForged is about a journal that no import has written.
	errForged = errors.New("the journal is not an import's")
)

// staging is the directory of one import. The open file holds a lock, which ends with
// the process.
type staging struct {
	target *os.File
	name   string
	dir    *os.File
	// step is called after each change.
	step func() error
}

// makeStaging makes the directory of an import and locks it.
func makeStaging(target *os.File, step func() error) (*staging, error) {
	at := int(target.Fd())
	for range 10 {
		var random [16]byte
		rand.Read(random[:])
		name := archive.ImportPrefix + hex.EncodeToString(random[:])
		if err := unix.Mkdirat(at, name, 0o700); err != nil {
			return nil, err
		}
		dir, err := openStaging(target, name)
		if err == nil {
			// Filesystems without locks have the beat only.
			err = lock(dir)
			if err == nil || !errors.Is(err, unix.EWOULDBLOCK) {
				if err = step(); err == nil {
					return &staging{target, name, dir, step}, nil
				}
			}
			dir.Close()
			if errors.Is(err, errStopped) {
				return nil, err
			}
		}
		// A recovery that found it before it was locked looks at it, or has removed it.
		if err := unix.Unlinkat(at, name, unix.AT_REMOVEDIR); err != nil && !errors.Is(err, unix.ENOENT) {
			return nil, err
		}
	}
	return nil, unix.EBUSY
}

// openStaging opens the directory of an import.
func openStaging(target *os.File, name string) (*os.File, error) {
	fd, err := unix.Openat(int(target.Fd()), name, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	return os.NewFile(uintptr(fd), name), nil
}

func lock(f *os.File) error { return unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB) }

// subdir opens a directory in the staging directory, and makes it where it is missing.
func (g *staging) subdir(name string) (*os.File, error) {
	at := int(g.dir.Fd())
	if err := unix.Mkdirat(at, name, 0o700); err != nil && !errors.Is(err, unix.EEXIST) {
		return nil, err
	}
	fd, err := unix.Openat(at, name, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	f := os.NewFile(uintptr(fd), name)
	if err := g.step(); err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}

// beat renews the time of the directory until the function that it returns is called.
func (g *staging) beat() (stop func()) {
	done, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		t := time.NewTicker(beatEvery)
		defer t.Stop()
		for {
			select {
			case <-done:
				return
			case <-t.C:
				g.renew()
			}
		}
	}()
	return func() { close(done); <-ended }
}

// renew sets the time of the directory to now.
func (g *staging) renew() {
	_, _, _ = unix.Syscall6(unix.SYS_UTIMENSAT, g.dir.Fd(), 0, 0, 0, 0, 0)
}

// record writes a plan down. It is on the disk when record returns.
func (g *staging) record(plan []renaming) error {
	b, err := encodeJournal(plan)
	if err != nil {
		return err
	}
	fd, err := unix.Openat(int(g.dir.Fd()), journalName, unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return err
	}
	f := os.NewFile(uintptr(fd), journalName)
	defer f.Close()
	if err := g.step(); err != nil {
		return err
	}
	if _, err := f.Write(b); err != nil {
		return err
	}
	if err := errors.Join(syncFile(f), syncFile(g.dir)); err != nil {
		return err
	}
	return g.step()
}

// syncFile brings an open file to the disk, where its filesystem can.
func syncFile(f *os.File) error {
	err := unix.Fsync(int(f.Fd()))
	if errors.Is(err, unix.EINVAL) || errors.Is(err, unix.EOPNOTSUPP) {
		return nil
	}
	return err
}

// commit makes the import count.
func (g *staging) commit() error {
	at := int(g.dir.Fd())
	if err := unix.Renameat(at, journalName, at, committedName); err != nil {
		return err
	}
	if err := syncFile(g.dir); err != nil {
		return errors.Join(err, unix.Renameat(at, committedName, at, journalName))
	}
	return g.step()
}

// settle removes the directory of an import that was committed or undone. What could not
// be moved back stays in old/, without a journal: no later import touches it.
func (g *staging) settle(plan []renaming) error {
	if openRecord(g.dir, committedName, nil) == nil {
		// The mark goes last: without it old/ is not removed.
		return g.remove(oldName, newName, committedName)
	}
	empty := g.emptyOld(plan)
	// As long as there is a journal, what is missing in new/ counts as moved.
	if err := unix.Unlinkat(int(g.dir.Fd()), journalName, 0); err != nil && !errors.Is(err, unix.ENOENT) {
		return err
	}
	if err := errors.Join(syncFile(g.dir), g.step()); err != nil {
		return err
	}
	if !empty {
		return os.RemoveAll(pathwalk.ProcFD(int(g.dir.Fd())) + "/" + newName)
	}
	return g.remove(newName)
}

// remove removes names in the directory with all below, and then the directory.
func (g *staging) remove(names ...string) error {
	for _, name := range names {
		// os.RemoveAll follows no link below, whatever the names are.
		if err := os.RemoveAll(pathwalk.ProcFD(int(g.dir.Fd())) + "/" + name); err != nil {
			return err
		}
		if err := g.step(); err != nil {
			return err
		}
	}
	return unix.Unlinkat(int(g.target.Fd()), g.name, unix.AT_REMOVEDIR)
}

// emptyOld removes old/ if only directories are in it that the plan's moves needed, and
// says whether it is gone. It removes nothing that was moved there.
func (g *staging) emptyOld(plan []renaming) bool {
	at := int(g.dir.Fd())
	parents := map[string]bool{}
	for _, m := range plan {
		for dir := path.Dir(m.name); !m.in() && dir != "." && !parents[dir]; dir = path.Dir(dir) {
			parents[dir] = true
		}
	}
	if fd, err := pathwalk.OpenDirAt(at, oldName); err == nil && len(parents) > 0 {
		w := pathwalk.DirWalk{Top: os.NewFile(uintptr(fd), oldName)}
		all := make([]string, 0, len(parents))
		for dir := range parents {
			all = append(all, dir)
		}
		slices.Sort(all)
		for _, dir := range slices.Backward(all) { // what is in a directory before it
			if in, err := w.Enter(path.Dir(dir)); err == nil {
				_ = unix.Unlinkat(in, path.Base(dir), unix.AT_REMOVEDIR)
			}
		}
		w.Close()
		w.Top.Close()
	} else if err == nil {
		unix.Close(fd)
	}
	err := unix.Unlinkat(at, oldName, unix.AT_REMOVEDIR)
	return err == nil || errors.Is(err, unix.ENOENT)
}

// journalMove is one line of a journal.
type journalMove struct {
	Name api.Bytes `json:"name"`
	Look string    `json:"look,omitempty"`
}

// journalEnd is the last line, by which it is known to be whole.
type journalEnd struct {
	Moves  int    `json:"moves"`
	SHA256 string `json:"sha256"`
}

func encodeJournal(plan []renaming) ([]byte, error) {
	tooLarge := api.Errorf(api.CodeTooLarge, "the tar changes more than %d names one by one, or their names are too long together", maxMoves).
		WithHint("unpack it in parts, or clear the directory")
	if len(plan) > maxMoves {
		return nil, tooLarge
	}
	var buf bytes.Buffer
	lines := json.NewEncoder(&buf)
	for _, m := range plan {
		if err := lines.Encode(journalMove{api.Bytes(m.name), m.look}); err != nil {
			return nil, err
		}
		if buf.Len() > maxJournal {
			return nil, tooLarge
		}
	}
	sum := sha256.Sum256(buf.Bytes())
	if err := lines.Encode(journalEnd{len(plan), hex.EncodeToString(sum[:])}); err != nil {
		return nil, err
	}
	if buf.Len() > maxJournal {
		return nil, tooLarge
	}
	return buf.Bytes(), nil
}

// decodeJournal is errTorn for the beginning of a journal.
func decodeJournal(b []byte) ([]renaming, error) {
	lines, ok := bytes.CutSuffix(b, []byte("\n"))
	if !ok {
		return nil, errTorn
	}
	cut := bytes.LastIndexByte(lines, '\n') + 1
	lines, last := lines[:cut], lines[cut:]
	var end journalEnd
	sum := sha256.Sum256(lines)
	if strictly(last, &end) != nil || end.SHA256 != hex.EncodeToString(sum[:]) {
		return nil, errTorn
	}
	if n := bytes.Count(lines, []byte("\n")); n != end.Moves || n > maxMoves {
		return nil, fmt.Errorf("%w: it has %d moves", errForged, n)
	}
	plan := make([]renaming, 0, end.Moves)
	for line := range bytes.Lines(lines) {
		var m journalMove
		if err := strictly(line, &m); err != nil {
			return nil, fmt.Errorf("%w: %w", errForged, err)
		}
		if !movable(string(m.Name)) || len(m.Look) > lookLen {
			return nil, fmt.Errorf("%w: it moves %.200q", errForged, string(m.Name))
		}
		plan = append(plan, renaming{string(m.Name), m.Look})
	}
	return plan, nil
}

// strictly decodes one line of JSON with no other fields.
func strictly(line []byte, v any) error {
	d := json.NewDecoder(bytes.NewReader(line))
	d.DisallowUnknownFields()
	if err := d.Decode(v); err != nil {
		return err
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return errors.New("there is more than one value in a line")
	}
	return nil
}

// movable says whether an import can have moved a name: it is relative, clean, leads
// nowhere else, and is in no import's directory.
func movable(name string) bool {
	if name == "" || name == "." || name[0] == '/' || path.Clean(name) != name || strings.ContainsRune(name, 0) {
		return false
	}
	depth := 0
	for part := range strings.SplitSeq(name, "/") {
		if depth++; depth > pack.MaxDepth || len(part) > unix.NAME_MAX || part == ".." {
			return false
		}
	}
	return !inStaging(name)
}

// openRecord reads a file of the staging directory into b, which may be nil. It takes
// only a regular file of the directory's owner.
func openRecord(dir *os.File, name string, b *[]byte) error {
	var own, st unix.Stat_t
	if err := pathwalk.Fstat(dir, &own); err != nil {
		return err
	}
	fd, err := unix.Openat(int(dir.Fd()), name, unix.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	f := os.NewFile(uintptr(fd), name)
	defer f.Close()
	if err := unix.Fstat(fd, &st); err != nil {
		return err
	}
	if st.Mode&unix.S_IFMT != unix.S_IFREG || st.Nlink != 1 || st.Uid != own.Uid || st.Size > maxJournal {
		return errForged
	}
	if b == nil {
		return nil
	}
	*b, err = io.ReadAll(io.LimitReader(f, maxJournal+1))
	if err == nil && len(*b) > maxJournal {
		err = errForged
	}
	return err
}

// lookLen is the length of what lookOf returns.
const lookLen = 22

// fileLook is what something that is no directory looks like. Times are in seconds, as
// some filesystems keep them.
type fileLook [16]byte

func newFileLook(kind uint32, size, seconds int64, target string) fileLook {
	sum := sha256.Sum256(fmt.Appendf(nil, "%o %d %d %s", kind, size, seconds, target))
	return fileLook(sum[:16])
}

// fileLooks are the looks of the files that an archive brought, as far as they are known
// from it, by their names. Each look at a file may be a call to what serves the disk.
type fileLooks map[string]fileLook

// maxLooks bounds them.
const maxLooks = 1 << 17

// note notes what a file is to look like that was made with a time.
func (k fileLooks) note(name string, size int64, t time.Time) {
	delete(k, name)
	if len(k) < maxLooks && !t.IsZero() {
		k[name] = newFileLook(unix.S_IFREG, size, time.Unix(0, t.UnixNano()).Unix(), "")
	}
}

// noteSame notes that a name is another one of a file.
func (k fileLooks) noteSame(name, as string) {
	look, ok := k[as]
	delete(k, name)
	if ok && len(k) < maxLooks {
		k[name] = look
	}
}

// lookAt looks at something that is no directory.
func lookAt(at int, base string, st *unix.Stat_t) (fileLook, error) {
	kind := uint32(st.Mode) & unix.S_IFMT
	if kind != unix.S_IFLNK {
		return newFileLook(kind, st.Size, st.Mtim.Sec, ""), nil
	}
	target := make([]byte, unix.PathMax)
	n, err := unix.Readlinkat(at, base, target)
	if err != nil {
		return fileLook{}, err
	}
	return newFileLook(kind, 0, 0, string(target[:n])), nil
}

// lookOf is what a file or a directory with all below looks like: names, kinds, and sizes,
// times and targets of what is no directory. It stays the same when the tree is mounted in
// another sandbox, which numbers of inodes do not, and changes when the content does.
func lookOf(w *pathwalk.DirWalk, name string, known fileLooks) (string, error) {
	l := looker{w: w, known: known, hash: sha256.New()}
	if err := l.add(name, ".", unix.DT_UNKNOWN, 0); err != nil {
		return "", err
	}
	return base64.RawStdEncoding.EncodeToString(l.hash.Sum(nil))[:lookLen], nil
}

type looker struct {
	w     *pathwalk.DirWalk
	known fileLooks
	hash  hash.Hash
	count int
}

// add takes in what is at name, which is at as below the top.
func (l *looker) add(name, as string, kind uint8, depth int) error {
	if l.count++; l.count > 2*pack.MaxEntries || depth > pack.MaxDepth {
		return errForged
	}
	look, ok := l.known[name]
	if !ok && kind != unix.DT_DIR {
		at, err := l.w.Enter(path.Dir(name))
		if err != nil {
			return err
		}
		var st unix.Stat_t
		if err := unix.Fstatat(at, path.Base(name), &st, unix.AT_SYMLINK_NOFOLLOW); err != nil {
			return err
		}
		if ok = st.Mode&unix.S_IFMT != unix.S_IFDIR; ok {
			if look, err = lookAt(at, path.Base(name), &st); err != nil {
				return err
			}
		}
	}
	if ok {
		_, err := fmt.Fprintf(l.hash, "%q %x\n", as, look)
		return err
	}
	return l.addDir(name, as, depth)
}

func (l *looker) addDir(name, as string, depth int) error {
	if _, err := fmt.Fprintf(l.hash, "%q\n", as); err != nil {
		return err
	}
	all, err := listDir(l.w, name)
	if err != nil {
		return err
	}
	for _, e := range all {
		if err := l.add(path.Join(name, e.Name), path.Join(as, e.Name), e.Kind, depth+1); err != nil {
			return err
		}
	}
	return nil
}
