//go:build !remoteonly

package workspace

import (
	"context"
	"errors"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cloche-dev/cloche/api"
)

// Bounds of one measurement: hostile code has made what is walked.
const (
	measureTimeout = time.Minute
	// measureDepth is how many directories are open at once.
	measureDepth = 512
	// measureEntries is how many are counted.
	measureEntries = 1_000_000
	// slackBytes is what a file may occupy beyond its size before that is counted.
	slackBytes = 64 << 10
)

// Measure walks a workspace and returns api.CodeQuota, without a phase, when it
// holds more than the limit; zero is unlimited. It counts the sizes of files,
// holes included, each once however many names it has, and symlinks as
// themselves. What vanishes meanwhile is not there. It stops as soon as there is
// too much. What cannot be counted for the way it was made counts as too much.
func Measure(ctx context.Context, d *Dir, limit Bounds) error {
	if !limit.Any() {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, measureTimeout)
	defer cancel()
	m := &measurement{ctx: ctx, limit: limit, seen: map[inodeKey]struct{}{}}
	top, err := d.reader()
	switch {
	case err == nil:
		defer top.Close()
		err = m.dir(top, 1)
	case errors.Is(err, unix.EACCES):
		err = m.unmeasurable("it can't be read")
	}
	switch {
	case err == nil:
		return nil
	case errors.Is(err, context.DeadlineExceeded):
		return api.Errorf(api.CodeTimeout, "the workspace could not be measured within %s", measureTimeout).
			WithHint("it holds very many files; remove some, or use a workspace whose quota is hard")
	}
	if _, ok := errors.AsType[*api.Error](err); ok {
		return err
	}
	return api.Errorf(api.CodeInternal, "the workspace could not be measured").WithCause(err)
}

type inodeKey struct{ dev, ino uint64 }

// measurement is a walk in progress.
type measurement struct {
	ctx   context.Context
	limit Bounds
	used  Bounds
	// seen are the files that have more than one name.
	seen map[inodeKey]struct{}
	// entries counts all names.
	entries int
	// taken: what files take of the disk counts, and not their sizes; and what cannot be
	// looked into makes the measurement partial, and is not too much.
	taken, partial bool
}

func (m *measurement) dir(f *os.File, depth int) error {
	err := eachName(m.ctx, f, func(name string) error {
		st, err := lstatAt(f, name)
		switch {
		case vanished(err):
			return nil
		case errors.Is(err, unix.EACCES) && m.taken:
			m.partial = true
			return nil
		case errors.Is(err, unix.EACCES):
			return m.unmeasurable("it has directories that can't be read")
		case err == nil:
			err = m.add(&st)
		}
		if err != nil || !isDir(&st) {
			return err
		}
		if depth >= measureDepth {
			return m.unmeasurable("its directories are nested deeper than %d", measureDepth)
		}
		sub, err := openDirAt(f, name)
		switch {
		case vanished(err), errors.Is(err, unix.ENOTDIR), errors.Is(err, unix.ELOOP): // it was replaced
			return nil
		case errors.Is(err, unix.EACCES) && m.taken:
			m.partial = true
			return nil
		case errors.Is(err, unix.EACCES):
			return m.unmeasurable("it has directories that can't be read")
		case err != nil:
			return err
		}
		defer sub.Close()
		return m.dir(sub, depth+1)
	})
	if vanished(err) { // a directory that is removed while it is listed
		return nil
	}
	return err
}

// add counts one entry.
func (m *measurement) add(st *unix.Stat_t) error {
	if m.entries++; m.entries > measureEntries {
		return m.unmeasurable("it has more than %d entries", measureEntries)
	}
	if st.Nlink > 1 && !isDir(st) {
		key := inodeKey{st.Dev, st.Ino}
		if _, again := m.seen[key]; again {
			return nil
		}
		m.seen[key] = struct{}{}
	}
	m.used.Inodes++
	switch {
	case m.taken:
		m.used.SizeBytes += st.Blocks * 512
	case !isDir(st):
		m.used.SizeBytes += st.Size
		if taken := st.Blocks * 512; taken > st.Size+slackBytes {
			m.used.SizeBytes += taken - st.Size
		}
	}
	switch {
	case m.limit.SizeBytes > 0 && m.used.SizeBytes > m.limit.SizeBytes:
		return excess(api.QuotaBytes, m.used.SizeBytes, m.limit.SizeBytes)
	case m.limit.Inodes > 0 && m.used.Inodes > m.limit.Inodes:
		return excess(api.QuotaInodes, m.used.Inodes, m.limit.Inodes)
	}
	return nil
}

func excess(unit api.QuotaUnit, used, limit int64) error {
	e := api.Errorf(api.CodeQuota, "the workspace holds more than it may: at least %d %s of %d", used, unit, limit).
		WithHint("remove files from it, or allow it more")
	e.Quota = &api.QuotaExcess{Unit: unit, Used: used, Limit: limit}
	return e
}

// unmeasurable is the excess of what was made so that it cannot be counted.
func (m *measurement) unmeasurable(format string, args ...any) error {
	unit, used, limit := api.QuotaBytes, m.used.SizeBytes, m.limit.SizeBytes
	if limit == 0 {
		unit, used, limit = api.QuotaInodes, m.used.Inodes, m.limit.Inodes
	}
	e := api.Errorf(api.CodeQuota, "the workspace cannot be measured: "+format, args...).
		WithHint("remove them, or use a workspace whose quota is hard")
	e.Quota = &api.QuotaExcess{Unit: unit, Used: used, Limit: limit}
	return e
}

func vanished(err error) bool { return errors.Is(err, unix.ENOENT) }
