package files

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path"

	"golang.org/x/sys/unix"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/archive"
	"github.com/cloche-dev/cloche/internal/archive/pack"
	"github.com/cloche-dev/cloche/internal/workspace"
)

// overflowID is the number that the owners of a file have inside if they have none of their own there.
const overflowID = 65534

// packHost packs a directory of this machine that a sandbox has at a path, past the sandbox. It returns false
// if the agent has to pack it, and has written nothing then.
func packHost(s Sandbox, name string, o api.TarOutOptions, w io.Writer) (report api.TarReport, packed bool, err error) {
	dir, rel, ok := hostDir(s, api.FilePlace{Path: name})
	if !ok {
		return report, false, nil
	}
	f, err := openBelow(dir, rel)
	if err != nil {
		return report, false, nil //nolint:nilerr // it is a file or behind a link, or the agent says what is wrong
	}
	defer f.Close()
	owner, ok := ownersOf(dir)
	if !ok {
		return report, false, nil
	}
	opts := pack.Options{Exclude: archive.NewPathSet(o.Exclude), CopyHardLinks: o.CopyHardLinks, Owner: owner}
	if !o.KeepLinks {
		opts.Roots = []string{path.Clean(name)}
	}
	report, err = pack.Write(w, int(f.Fd()), path.Base(name), opts)
	if _, ok := errors.AsType[*api.Error](err); err != nil && !ok {
		err = fmt.Errorf("write tar: %w", err)
	}
	return report, true, err
}

// ownersOf returns how the owners of files in a mounted directory are shown inside, and false if that is not
// known: for root's sandboxes a directory of another user is mounted with other owners, if its filesystem can.
func ownersOf(dir workspace.Attached) (func(uid, gid uint32) (int, int), bool) {
	top, err := openBelow(dir, "")
	if err != nil {
		return nil, false
	}
	defer top.Close()
	var st unix.Stat_t
	if err := unix.Fstat(int(top.Fd()), &st); err != nil {
		return nil, false
	}
	uid, gid := uint32(os.Geteuid()), uint32(os.Getegid())
	if uid == 0 {
		return nil, st.Uid == 0
	}
	shown := func(id, own uint32) int {
		if id == own {
			return 0
		}
		return overflowID
	}
	return func(u, g uint32) (int, int) { return shown(u, uid), shown(g, gid) }, true
}
