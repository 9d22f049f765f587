// Package filesync keeps directories of this machine and their copies in a sandbox alike, for an engine
// whose sandboxes see no file of this machine. A sync compares both sides with what they were after the
// last one, and carries what changed on one side to the other: contents, modes, links and removals. Of a
// file that changed on both sides, the one of this machine stays. Owners, extended attributes, and files
// that are neither regular nor links are not carried, and a link that leads out of the directory is not
// carried to this machine.
package filesync

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/agent"
	"github.com/cloche-dev/cloche/internal/archive/localdir"
	"github.com/cloche-dev/cloche/internal/hostfile"
)

// Limits of one directory. What exceeds them is an error, and then nothing more is synchronized.
const (
	// MaxEntries bounds its files and directories.
	MaxEntries = 100_000
	// MaxBytes bounds what one sync carries in each direction.
	MaxBytes = 4 << 30
)

// Agent is what a sync needs of the agent of a sandbox.
type Agent interface {
	Tree(ctx context.Context, top string, fn func(agent.TreeEntry) error) error
	PackOnly(ctx context.Context, top string, names []string, w io.Writer) (api.TarReport, error)
	TarIn(ctx context.Context, path string, o api.TarInOptions, r io.Reader) (api.TarReport, error)
	Remove(ctx context.Context, path string, recursive bool) error
}

// Options describe a directory and its copy.
type Options struct {
	// Root is the directory of this machine, which stays the caller's.
	Root *os.Root
	// Target is the path of the copy in the sandbox.
	Target string
	// ReadOnly carries nothing to this machine. What changes in the copy is undone.
	ReadOnly bool
	// UID and GID own what is carried to this machine. Negative values leave it to the process's user.
	UID, GID int
	// Path is a file that keeps what the last sync found. Without it, a Copy of a later process takes
	// every difference for a change on both sides.
	Path string
}

// Report says what a sync did.
type Report struct {
	// In and Out count what was carried into the sandbox and to this machine, removals included.
	In, Out int
	// Conflicts are the paths that changed on both sides, at most [maxTold].
	Conflicts []string
	// Skipped are the paths that were not carried, at most [maxTold].
	Skipped []api.TarSkip
	// closed are the directories of this machine that cannot be listed. What is below is left on both
	// sides.
	closed []string
}

// left reports whether a path is not compared.
func (r *Report) left(p string) bool {
	return slices.ContainsFunc(r.closed, func(dir string) bool { return p == dir || strings.HasPrefix(p, dir+"/") })
}

// maxTold bounds the paths of a Report.
const maxTold = 100

// state is what a file was on one side. The zero state is a file that is not there.
type state struct {
	Mode  fs.FileMode `json:"m,omitempty"`
	Size  int64       `json:"s,omitempty"`
	Mtime int64       `json:"t,omitempty"` // ns since 1970; 0 for a directory
	// Ctime and Ino tell a file in the sandbox apart from one that looks the same.
	Ctime int64  `json:"c,omitempty"`
	Ino   uint64 `json:"i,omitempty"`
}

// same reports whether two files of different sides are alike.
func (s state) same(o state) bool {
	if s.Mode != o.Mode {
		return false
	}
	return s.Mode.IsDir() || s.Mode&fs.ModeSymlink != 0 || s.Size == o.Size && s.Mtime == o.Mtime
}

// pair is a file on both sides after a sync.
type pair struct {
	Host  state `json:"h,omitzero"`
	Guest state `json:"g,omitzero"`
}

// Copy is a directory and its copy. It is safe for concurrent use.
type Copy struct {
	o Options

	mu   sync.Mutex
	base map[string]pair // by path
}

// New returns a Copy, which was never synchronized if its file does not exist.
func New(o Options) (*Copy, error) {
	c := &Copy{o: o, base: map[string]pair{}}
	data, err := os.ReadFile(o.Path)
	if errors.Is(err, fs.ErrNotExist) {
		return c, nil
	}
	if err == nil {
		err = json.Unmarshal(data, &c.base)
	}
	if err != nil {
		return nil, fmt.Errorf("read the state of the copy at %s: %w", o.Target, err)
	}
	return c, nil
}

// save writes what the sync found. The caller holds c.mu.
func (c *Copy) save() error {
	data, err := json.Marshal(c.base)
	if err == nil {
		err = hostfile.ReplaceIn(filepath.Dir(c.o.Path), filepath.Base(c.o.Path), data)
	}
	if err != nil {
		return fmt.Errorf("keep the state of the copy at %s: %w", c.o.Target, err)
	}
	return nil
}

// Fill replaces the content of the copy by the content of the directory.
func (c *Copy) Fill(ctx context.Context, a Agent) (Report, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	var rep Report
	host, err := c.hostTree(&rep)
	if err != nil {
		return rep, err
	}
	maps.DeleteFunc(host, func(p string, _ state) bool { return rep.left(p) })
	if err := c.push(ctx, a, slices.Collect(maps.Keys(host)), host, true, &rep); err != nil {
		return rep, err
	}
	clear(c.base)
	if err := c.remember(ctx, a, host, nil); err != nil {
		return rep, err
	}
	return rep, c.save()
}

// Sync carries what changed since the last sync, or since Fill.
func (c *Copy) Sync(ctx context.Context, a Agent) (Report, error) { return c.retry(ctx, a, false) }

// Refresh is Sync if something has changed on this machine. Otherwise it asks the sandbox for nothing.
func (c *Copy) Refresh(ctx context.Context, a Agent) (Report, error) { return c.retry(ctx, a, true) }

func (c *Copy) retry(ctx context.Context, a Agent, ifHostChanged bool) (Report, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for try := 1; ; try++ {
		rep, err := c.sync(ctx, a, ifHostChanged)
		if try == maxTries || !errors.Is(err, errUnsteady) {
			return rep, err
		}
	}
}

// maxTries bounds the attempts to carry files that programs of this machine are writing.
const maxTries = 3

// sync is one attempt. The caller holds c.mu.
func (c *Copy) sync(ctx context.Context, a Agent, ifHostChanged bool) (Report, error) {
	var rep Report
	host, err := c.hostTree(&rep)
	if err != nil || ifHostChanged && !c.hostChanged(host, &rep) {
		return rep, err
	}
	guest, err := c.guestTree(ctx, a)
	if err != nil {
		return rep, err
	}
	w := c.compare(host, guest, &rep)
	if err = c.pull(ctx, a, &w, guest, &rep); err == nil {
		err = c.apply(ctx, a, &w, host, &rep)
	}
	if w.empty() {
		return rep, err
	}
	return rep, errors.Join(err, c.save())
}

// hostChanged compares the directory with what it was after the last sync.
func (c *Copy) hostChanged(host map[string]state, rep *Report) bool {
	for p, h := range host {
		if c.base[p].Host != h && !rep.left(p) {
			return true
		}
	}
	for p, b := range c.base {
		if _, there := host[p]; !there && b.Host != (state{}) && !rep.left(p) {
			return true
		}
	}
	return false
}

// work is what a sync has to do. The paths are sorted.
type work struct {
	push, pull              []string
	removeHost, removeGuest []string
}

func (w *work) empty() bool {
	return len(w.push)+len(w.pull)+len(w.removeHost)+len(w.removeGuest) == 0
}

// compare says what changed on which side.
func (c *Copy) compare(host, guest map[string]state, rep *Report) work {
	var w work
	all := maps.Clone(host)
	maps.Copy(all, guest)
	for p := range c.base {
		all[p] = state{}
	}
	for _, p := range slices.Sorted(maps.Keys(all)) {
		if rep.left(p) {
			continue
		}
		h, g, b := host[p], guest[p], c.base[p]
		here, there := h != b.Host, g != b.Guest
		switch {
		case !here && !there:
		case h == state{} && g == state{}:
			delete(c.base, p)
		case here && there && h.same(g):
			c.base[p] = pair{h, g}
		case here || c.o.ReadOnly:
			if here && there && len(rep.Conflicts) < maxTold && !c.o.ReadOnly {
				rep.Conflicts = append(rep.Conflicts, p)
			}
			if h == (state{}) {
				w.removeGuest = append(w.removeGuest, p)
				continue
			}
			if g != (state{}) && g.Mode.Type() != h.Mode.Type() {
				w.removeGuest = append(w.removeGuest, p)
			}
			w.push = append(w.push, p)
		case g == state{}:
			w.removeHost = append(w.removeHost, p)
		default:
			if h != (state{}) && g.Mode.Type() != h.Mode.Type() {
				w.removeHost = append(w.removeHost, p)
			}
			w.pull = append(w.pull, p)
		}
	}
	return w
}

// hostTree lists the directory.
func (c *Copy) hostTree(rep *Report) (map[string]state, error) {
	out := map[string]state{}
	var walk func(dir string) error
	walk = func(dir string) error {
		d, err := c.o.Root.Open(dir)
		if err != nil {
			return err
		}
		names, err := d.Readdirnames(-1)
		if cerr := d.Close(); err == nil {
			err = cerr
		}
		if err != nil {
			return err
		}
		for _, name := range names {
			p := path.Join(dir, name)
			info, err := c.o.Root.Lstat(p)
			if errors.Is(err, fs.ErrNotExist) {
				continue // it was removed meanwhile
			}
			if err != nil {
				return err
			}
			s, ok := hostState(info)
			if !ok {
				rep.skip(p, "it is neither file, directory nor link")
				continue
			}
			if out[p] = s; len(out) > MaxEntries {
				return tooMany()
			}
			if info.IsDir() {
				err := walk(p)
				if errors.Is(err, fs.ErrPermission) {
					rep.close(p)
				} else if err != nil && !errors.Is(err, fs.ErrNotExist) {
					return err
				}
			}
		}
		return nil
	}
	if err := walk("."); err != nil {
		if _, ok := errors.AsType[*api.Error](err); ok {
			return nil, err
		}
		return nil, fmt.Errorf("list the directory of the copy at %s: %w", c.o.Target, err)
	}
	return out, nil
}

func tooMany() error {
	return api.Errorf(api.CodeTooLarge, "a directory with more than %d files cannot be synchronized with a sandbox", MaxEntries).
		WithHint("use a smaller directory, or copy what is needed with `cloche cp`")
}

// carried reports whether files of a type are carried.
func carried(m fs.FileMode) bool {
	return m.IsRegular() || m.IsDir() || m&fs.ModeType == fs.ModeSymlink
}

func hostState(info fs.FileInfo) (state, bool) {
	m := info.Mode()
	if !carried(m) {
		return state{}, false
	}
	s := state{Mode: m.Type() | m.Perm()}
	return s.timed(info.Size(), info.ModTime().UnixNano()), true
}

// timed adds what only says something of files. Directories change with what is in them, and links have no
// mode.
func (s state) timed(size, mtime int64) state {
	if s.Mode.IsDir() {
		return s
	}
	s.Size, s.Mtime = size, mtime
	if s.Mode&fs.ModeSymlink != 0 {
		s.Mode = fs.ModeSymlink
	}
	return s
}

// guestTree lists the copy.
func (c *Copy) guestTree(ctx context.Context, a Agent) (map[string]state, error) {
	out := map[string]state{}
	err := a.Tree(ctx, c.o.Target, func(e agent.TreeEntry) error {
		p := string(e.Path)
		if name, ok := localdir.LocalName(p); !ok || name == "." || strings.HasPrefix(p, "./") {
			return nil
		}
		s := state{Mode: modeOf(e.Mode), Ino: e.Ino, Ctime: e.Ctime}
		if !carried(s.Mode) {
			return nil
		}
		if s.Mode.IsDir() {
			s.Ctime = 0
		}
		if out[p] = s.timed(e.Size, e.Mtime); len(out) > MaxEntries {
			return tooMany()
		}
		return nil
	})
	return out, err
}

// modeOf is a mode of stat(2).
func modeOf(m uint32) fs.FileMode {
	out := fs.FileMode(m & 0o777)
	switch m & 0o170000 {
	case 0o100000:
	case 0o040000:
		out |= fs.ModeDir
	case 0o120000:
		out |= fs.ModeSymlink
	default:
		out |= fs.ModeIrregular
	}
	return out
}

// close leaves a directory that the process's user cannot list or enter.
func (r *Report) close(p string) {
	r.closed = append(r.closed, p)
	r.skip(p, "the daemon's user cannot read it on the host")
}

func (r *Report) skip(p, reason string) {
	if len(r.Skipped) < maxTold {
		r.Skipped = append(r.Skipped, api.TarSkip{Path: p, Reason: reason})
	}
}
