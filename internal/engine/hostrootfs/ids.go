//go:build linux

package hostrootfs

import (
	"bufio"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/cloche-dev/cloche/internal/engine"
	"github.com/cloche-dev/cloche/internal/engine/pidfd"
	"github.com/cloche-dev/cloche/internal/idmap"
)

// IDs say who the sandbox's users are on the host: a range that no other sandbox
// has, or (size 1) the user of the daemon as root.
type IDs struct {
	UID, GID uint32
	Size     uint32
}

// Many reports whether there is more than one user.
func (i IDs) Many() bool { return i.Size > 1 }

// Create runs f, which makes a user namespace for these ids, on a locked thread. The kernel
// counts what is in a namespace for its creator, too: here for the first of the ids, and
// not for root of the host, whose tables a sandbox could fill otherwise.
func (i IDs) Create(f func() error) error {
	if !i.Many() {
		return f()
	}
	if err := setEffective(i.UID); err != nil {
		return fmt.Errorf("act as the sandbox's user: %w", errors.Join(err, setEffective(0)))
	}
	err := f()
	if back := setEffective(0); back != nil {
		return errors.Join(err, fmt.Errorf("act as root again: %w", back))
	}
	return err
}

// setEffective gives the thread another effective user, and no fewer capabilities.
func setEffective(uid uint32) error {
	const keep = ^uintptr(0)
	// Not by the wrapper, which changes every thread.
	if _, _, errno := unix.RawSyscall(unix.SYS_SETRESUID, keep, uintptr(uid), keep); errno != 0 {
		return os.NewSyscallError("setresuid", errno)
	}
	// Files are root's as before, for new files too, until the thread has ids of its own.
	_, _, _ = unix.RawSyscall(unix.SYS_SETFSUID, 0, 0, 0) // it does not say whether it did
	head := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var caps [2]unix.CapUserData
	if err := unix.Capget(&head, &caps[0]); err != nil {
		return os.NewSyscallError("capget", err)
	}
	for i := range caps {
		caps[i].Effective = caps[i].Permitted
	}
	return os.NewSyscallError("capset", unix.Capset(&head, &caps[0]))
}

// Closed makes a user namespace to map the ids of a mount with, in which users are as in
// the sandbox's own and no group has a place: see idmap.NoGroups. The caller closes it.
func (i IDs) Closed() (*os.File, error) {
	m := idmap.Mapping{UIDs: []syscall.SysProcIDMap{{HostID: int(i.UID), Size: int(i.Size)}}, GIDs: idmap.NoGroups()}
	return m.Namespace()
}

// Closes says whether sockets and named pipes of the host in a mount are closed to
// programs: it is read-only, and what is in it comes and goes.
func Closes(m engine.Mount) bool { return m.ReadOnly && !m.Static }

// rangeSize is the number of ids of a sandbox: what programs expect to exist.
const rangeSize = 1 << 16

// Without subordinate ids of its own a daemon of root's takes ranges from where
// container managers do, and no user is.
const (
	freeBase  = 0x6000_0000
	freeCount = 4096
)

// IDPool hands out ranges. A range is taken as long as a file of its number is in the
// pool's directory, which engines have to share.
type IDPool struct {
	dir   string
	base  uint32
	count int // 0: only the daemon's own user
	where string
}

// Where says for people whose ids those are.
func (p *IDPool) Where() string { return p.where }

// NewIDPool looks for ranges of root's. A normal user's could be mapped by newuidmap, but
// files of theirs in workspaces and roots would be closed to the daemon, which measures,
// copies and removes them: its sandboxes have that user as root instead.
func NewIDPool(dir string, root bool) *IDPool {
	p := &IDPool{dir: dir, where: engine.OneUser}
	if !root {
		return p
	}
	p.base, p.count, p.where = freeBase, freeCount, "ranges of 65536 that no user has"
	for _, name := range []string{"cloche", "root", "0"} {
		uids, n := subordinate("/etc/subuid", name)
		gids, m := subordinate("/etc/subgid", name)
		if n >= rangeSize && uids == gids && n == m {
			p.base, p.count, p.where = uids, int(n/rangeSize), "ranges of 65536 from /etc/subuid"
			break
		}
	}
	return p
}

// subordinate is the first range of a name in a file such as /etc/subuid.
func subordinate(file, name string) (first, count uint32) {
	f, err := os.Open(file)
	if err != nil {
		return 0, 0
	}
	defer f.Close()
	for sc := bufio.NewScanner(f); sc.Scan(); {
		part := strings.Split(strings.TrimSpace(sc.Text()), ":")
		if len(part) != 3 || part[0] != name {
			continue
		}
		a, err1 := strconv.ParseUint(part[1], 10, 32)
		n, err2 := strconv.ParseUint(part[2], 10, 32)
		if err1 == nil && err2 == nil && a > 0 && a+n < 1<<32-1 {
			return uint32(a), uint32(n)
		}
	}
	return 0, 0
}

// Take returns a free range.
func (p *IDPool) Take() (IDs, error) {
	if p.count == 0 {
		return IDs{UID: uint32(os.Geteuid()), GID: uint32(os.Getegid()), Size: 1}, nil
	}
	from := rand.IntN(p.count)
	for i := range p.count {
		base := p.base + uint32((from+i)%p.count)*rangeSize
		f, err := os.OpenFile(p.path(base), os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
		if errors.Is(err, fs.ErrExist) {
			continue
		}
		if err != nil {
			return IDs{}, fmt.Errorf("take a range of ids: %w", err)
		}
		f.Close()
		return IDs{UID: base, GID: base, Size: rangeSize}, nil
	}
	return IDs{}, fmt.Errorf("all %d ranges of ids are taken: %w", p.count, unix.ENOSPC)
}

// Release gives a range back; 0 does nothing.
func (p *IDPool) Release(base uint32) {
	if base != 0 && p.dir != "" {
		_ = os.Remove(p.path(base))
	}
}

func (p *IDPool) path(base uint32) string {
	return filepath.Join(p.dir, "ids-"+strconv.FormatUint(uint64(base), 10))
}

// Write gives a process that waits for them its ids.
func (i IDs) Write(pid int) error {
	dir := "/proc/" + strconv.Itoa(pid)
	if !i.Many() {
		if err := pidfd.Write(dir, "setgroups", "deny"); err != nil {
			return fmt.Errorf("map ids: %w", err)
		}
	}
	for _, m := range []struct {
		name string
		id   uint32
	}{{"gid_map", i.GID}, {"uid_map", i.UID}} {
		if err := pidfd.Write(dir, m.name, fmt.Sprintf("0 %d %d\n", m.id, i.Size)); err != nil {
			return fmt.Errorf("map ids: %w", err)
		}
	}
	return nil
}
