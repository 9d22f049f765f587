//go:build !remoteonly

package workspace

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"strings"

	"golang.org/x/sys/unix"
)

const (
	// cutPrefix begins the name under which the agent writes a file until it is whole;
	// cutLen hexadecimal digits follow. cutMode is its mode until then.
	cutPrefix = ".cloche-"
	cutLen    = 16
	cutMode   = unix.S_IFREG | 0o600
)

// RemoveCutWrites removes what writes through the agent left that were cut off by the end
// of their sandbox: regular files with the exact form of the agent's temporary names, the
// mode that these have until they are whole, and no other name. It follows no symlink and
// leaves other filesystems alone. Nothing may write to the directory meanwhile.
func (d *Dir) RemoveCutWrites(ctx context.Context) error {
	top, err := d.reader()
	if err != nil {
		return fmt.Errorf("look for writes that were cut off: %w", err)
	}
	defer top.Close()
	var st unix.Stat_t
	if err := unix.Fstat(int(top.Fd()), &st); err != nil {
		return fmt.Errorf("look for writes that were cut off: %w", err)
	}
	if err := removeCut(ctx, top, st.Dev, 0); err != nil {
		return fmt.Errorf("remove writes that were cut off: %w", err)
	}
	return nil
}

func removeCut(ctx context.Context, dir *os.File, dev uint64, depth int) error {
	return eachName(ctx, dir, func(name string) error {
		st, err := lstatAt(dir, name)
		switch {
		case errors.Is(err, unix.ENOENT):
			return nil
		case err != nil:
			return err
		case isDir(&st) && st.Dev == dev && depth < maxDepth:
			sub, err := openDirAt(dir, name)
			if err != nil {
				return err
			}
			defer sub.Close()
			return removeCut(ctx, sub, dev, depth+1)
		case isCut(name) && st.Mode == cutMode && st.Nlink == 1:
			return ignoreMissing(unix.Unlinkat(int(dir.Fd()), name, 0))
		}
		return nil
	})
}

// isCut reports whether a name is one that the agent gives to a file that is not whole.
func isCut(name string) bool {
	digits, ok := strings.CutPrefix(name, cutPrefix)
	if !ok || len(digits) != cutLen || strings.ToLower(digits) != digits {
		return false
	}
	_, err := hex.DecodeString(digits)
	return err == nil
}
