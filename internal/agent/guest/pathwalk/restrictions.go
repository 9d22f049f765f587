//go:build linux

package pathwalk

import (
	"errors"
	"fmt"
	"os"
	"path"
	"strings"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/agent/guest/identity"
	"github.com/cloche-dev/cloche/internal/agent/wire"
)

// Restrictions are the rules on paths of mounts. A path with a rule is a mount of its own: of
// itself, read-only or not, or of a mask that no program may enter. The agent makes these mounts
// because it runs before all programs, and because they cannot mount.
type Restrictions struct {
	id    identity.Identity
	users *identity.Users
	mu    sync.Mutex
	given bool
	rules []wire.Rule
}

// NewRestrictions returns restrictions without rules.
func NewRestrictions(id identity.Identity, users *identity.Users) *Restrictions {
	return &Restrictions{id: id, users: users}
}

// maskDir is where the masks are made; it is a mount for that time only.
const maskDir = "/sys"

// Apply puts rules in force, once, before anything is started.
func (rs *Restrictions) Apply(rules []wire.Rule) error {
	rs.mu.Lock()
	defer rs.mu.Unlock()
	if rs.given {
		return api.Errorf(api.CodeState, "the rules of this sandbox's mounts are in force already")
	}
	rs.given = true
	m, err := newMasks()
	if err != nil {
		return fmt.Errorf("make masks: %w", err)
	}
	defer m.close()
	for _, r := range rules {
		if err := rs.apply(m, r); err != nil {
			return err
		}
	}
	rs.rules = rules
	return nil
}

func (rs *Restrictions) apply(m *masks, r wire.Rule) error {
	if err := CheckPath(r.Name, string(r.Target)); err != nil {
		return err
	}
	place, err := rs.place(r)
	if err != nil {
		return ruleError(r, err)
	}
	defer place.Close()
	at := ProcFD(int(place.Fd()))
	if r.Access == api.AccessNone {
		var st unix.Stat_t
		if err := unix.Fstat(int(place.Fd()), &st); err != nil {
			return ruleError(r, err)
		}
		mask := m.file
		if st.Mode&unix.S_IFMT == unix.S_IFDIR {
			mask = m.dir
		}
		if err := unix.Mount(ProcFD(int(mask.Fd())), at, "", unix.MS_BIND, ""); err != nil {
			return ruleError(r, fmt.Errorf("cover it: %w", err))
		}
	} else if err := unix.Mount(at, at, "", unix.MS_BIND|unix.MS_REC, ""); err != nil {
		return ruleError(r, fmt.Errorf("mount it on itself: %w", err))
	}
	// The same way leads to the new mount now.
	top, err := rs.place(r)
	if err != nil {
		return ruleError(r, err)
	}
	defer top.Close()
	flags := uintptr(unix.MS_REMOUNT | unix.MS_BIND | unix.MS_NOSUID | unix.MS_NODEV)
	if r.Access != api.AccessWrite {
		flags |= unix.MS_RDONLY
	}
	if err := unix.Mount("", ProcFD(int(top.Fd())), "", flags, ""); err != nil {
		return ruleError(r, fmt.Errorf("set its access: %w", err))
	}
	return nil
}

func ruleError(r wire.Rule, err error) error {
	if e, ok := errors.AsType[*api.Error](err); ok {
		e.Field = r.Name
		return e
	}
	e := api.Invalid(r.Name, "%s: %.300q in the mount at %.300q cannot be given its access: %v", r.Name, string(r.Path), string(r.Target), err)
	switch {
	case errors.Is(err, unix.ENOENT):
		return e.WithHint("nothing is there, and it cannot be made in a read-only mount: make it on the host, or leave the rule out")
	case errors.Is(err, unix.ENOTDIR), errors.Is(err, unix.ELOOP):
		return e.WithHint("name a path that leads over no symlink and through no file")
	case errors.Is(err, unix.EACCES), errors.Is(err, unix.EPERM), errors.Is(err, unix.EROFS):
		return e.WithHint("the sandbox itself must be able to reach it, and to make it when it is missing")
	}
	return e.WithHint("name a file or directory of the mount")
}

// place opens what a rule is for, over no symlink. Directories that are missing
// are made where the rule says so: it is to hold for what comes there later.
func (rs *Restrictions) place(r wire.Rule) (*os.File, error) {
	fd, err := unix.Open(string(r.Target), unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	top := os.NewFile(uintptr(fd), string(r.Target))
	defer top.Close()
	w := DirWalk{Top: top}
	defer w.Close()
	u, err := rs.users.Lookup("")
	if err != nil {
		return nil, err
	}
	mkdir := func(at int, name string) error {
		return rs.id.As(u, func() error { return unix.Mkdirat(at, name, 0o755) })
	}
	if r.Make {
		w.Mkdir = mkdir
	}
	dir, base := path.Split(path.Clean(string(r.Path)))
	at, err := w.Enter(path.Clean(dir))
	if _, ok := errors.AsType[*api.Error](err); ok {
		return nil, unix.ENOTDIR
	}
	if err != nil {
		return nil, err
	}
	for range 2 {
		var fd int
		fd, err = unix.Openat(at, base, unix.O_PATH|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
		if errors.Is(err, unix.ENOENT) && r.Make {
			if merr := mkdir(at, base); merr != nil && !errors.Is(merr, unix.EEXIST) {
				return nil, merr
			}
			continue
		}
		if err != nil {
			return nil, err
		}
		f := os.NewFile(uintptr(fd), base)
		var st unix.Stat_t
		if err := unix.Fstat(fd, &st); err != nil || st.Mode&unix.S_IFMT == unix.S_IFLNK {
			f.Close()
			return nil, errors.Join(err, unix.ELOOP)
		}
		return f, nil
	}
	return nil, err
}

// masks are the files that cover paths without access.
type masks struct{ dir, file *os.File }

func newMasks() (*masks, error) {
	if err := unix.Mount("tmpfs", maskDir, "tmpfs", unix.MS_NOSUID|unix.MS_NODEV, "size=64k,mode=0700"); err != nil {
		return nil, err
	}
	m := &masks{}
	err := unix.Mkdir(maskDir+"/dir", 0)
	if err == nil {
		m.dir, err = openMask(maskDir+"/dir", 0)
	}
	if err == nil {
		m.file, err = openMask(maskDir+"/file", unix.O_CREAT)
	}
	if err != nil {
		m.close()
		return nil, err
	}
	return m, nil
}

// openMask opens a mask, which belongs to the agent: no capability of a process
// counts for what belongs to an id that its namespace does not have.
func openMask(name string, flags int) (*os.File, error) {
	fd, err := unix.Open(name, unix.O_RDONLY|unix.O_CLOEXEC|flags, 0)
	if err != nil {
		return nil, err
	}
	f := os.NewFile(uintptr(fd), name)
	if err := errors.Join(unix.Fchown(fd, identity.AgentID, identity.AgentID), SetMode(fd, 0)); err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}

// close unmounts the masks. Their bind mounts stay.
func (m *masks) close() {
	defer func() { _ = unix.Unmount(maskDir, unix.MNT_DETACH) }()
	for _, f := range []*os.File{m.dir, m.file} {
		if f != nil {
			f.Close()
		}
	}
}

// IsMask says that a file is a mask. The agent has the right to enter it, and
// must not.
func IsMask(st *unix.Stat_t) bool {
	return st.Uid == identity.AgentID && st.Gid == identity.AgentID && st.Mode&0o7777 == 0
}

// Explain makes of an error of the file system what the rules of the mounts have
// to do with it.
func (rs *Restrictions) Explain(name string, err error) error {
	if e, ok := errors.AsType[*api.Error](err); err == nil || ok && e.Code == api.CodeDenied && e.Rule != "" {
		return err // it has its reason
	}
	rs.mu.Lock()
	rules := rs.rules
	rs.mu.Unlock()
	if len(rules) == 0 {
		return err
	}
	var errno unix.Errno
	if !errors.As(err, &errno) {
		return err
	}
	names := []string{path.Clean(name)}
	if real, _, rerr := ResolveLinks(name); rerr == nil || errors.Is(rerr, unix.ENOENT) && real != "" {
		names = append(names, path.Clean(real))
	}
	for _, n := range names {
		rule, ok := covering(rules, n)
		if !ok {
			continue
		}
		switch {
		case rule.Access == api.AccessNone:
			return denied(rule, name, "no access", err)
		case rule.Access == api.AccessRead && (errno == unix.EROFS || errno == unix.EXDEV || errno == unix.EBUSY || errno == unix.EACCES):
			return denied(rule, name, "reading only", err)
		}
	}
	if errno != unix.EBUSY {
		return err
	}
	// What is above a rule stays where it is.
	for _, n := range names {
		if rule, ok := below(rules, n); ok {
			return denied(rule, name, "no move of what is above "+path.Join(string(rule.Target), string(rule.Path)), err)
		}
	}
	return err
}

// below is a rule on something in the directory name.
func below(rules []wire.Rule, name string) (wire.Rule, bool) {
	for _, r := range rules {
		if strings.HasPrefix(path.Join(string(r.Target), string(r.Path)), name+"/") && r.Access != api.AccessWrite {
			return r, true
		}
	}
	return wire.Rule{}, false
}

func denied(r wire.Rule, name, what string, err error) error {
	e := api.Errorf(api.CodeDenied, "%.500q: %s allows %s", name, r.Name, what).
		WithHint("the rules of a mount are given when the sandbox is made").WithCause(err)
	e.Rule = r.Name
	return e
}

// covering is the rule that is the longest of those that hold name.
func covering(rules []wire.Rule, name string) (found wire.Rule, ok bool) {
	longest := -1
	for _, r := range rules {
		at := path.Join(string(r.Target), string(r.Path))
		if (name == at || strings.HasPrefix(name, at+"/")) && len(at) > longest {
			found, ok, longest = r, true, len(at)
		}
	}
	return found, ok
}
