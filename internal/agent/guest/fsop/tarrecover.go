//go:build linux

package fsop

import (
	"errors"
	"os"
	"slices"
	"strconv"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cloche-dev/cloche/internal/agent/guest/pathwalk"
	"github.com/cloche-dev/cloche/internal/archive"
)

// asOwner runs fn with the rights that the programs of a user of this sandbox have.
func (fo *Files) asOwner(uid uint32, fn func() error) error {
	u, err := fo.users.Lookup(strconv.FormatUint(uint64(uid), 10))
	if err != nil {
		return err
	}
	return fo.id.With(u, fn)
}

// recovery ends what killed imports have left in a target.
type recovery struct {
	target *os.File
	// as runs a function with the rights of a user's programs.
	as   func(uid uint32, fn func() error) error
	step func() error
	// until is when to wait no longer.
	until time.Time
}

// recoverImports undoes imports that were killed before they were committed, and removes
// what others left. What it cannot do it leaves as it is: an import does not depend on it.
func recoverImports(target *os.File, as func(uint32, func() error) error) {
	r := recovery{target, as, func() error { return nil }, time.Now().Add(maxRecovery)}
	_ = r.run()
}

// run fails only when a test stops it.
func (r *recovery) run() error {
	all, err := names(&pathwalk.DirWalk{Top: r.target}, ".")
	if err != nil {
		return nil //nolint:nilerr // the import itself says what is wrong with the target
	}
	all = slices.DeleteFunc(all, func(name string) bool { return !archive.IsImport(name) })
	for _, name := range all[:min(len(all), maxStagings)] {
		if err := r.one(name); errors.Is(err, errStopped) {
			return err
		}
	}
	return nil
}

// one ends one import, unless another program has made its directory.
func (r *recovery) one(name string) error {
	dir, err := openStaging(r.target, name)
	if err != nil {
		return err
	}
	defer dir.Close()
	var st unix.Stat_t
	if err := pathwalk.Fstat(dir, &st); err != nil {
		return err
	}
	// A directory takes set-group-ID from the one that it is made in.
	if st.Mode&0o7777&^unix.S_ISGID != 0o700 {
		return errForged
	}
	g := &staging{r.target, name, dir, r.step}
	return r.as(st.Uid, func() error {
		if err := r.wait(g); err != nil {
			return err
		}
		g.renew()
		return g.recover()
	})
}

// wait takes the lock and waits until the import is surely dead, if it may have moved
// anything: what moves on is not to be mixed with what the next import brings.
func (r *recovery) wait(g *staging) error {
	if err := lock(g.dir); err != nil {
		return err // it is alive, or there are no locks
	}
	for {
		var st unix.Stat_t
		if err := pathwalk.Fstat(g.dir, &st); err != nil {
			return err
		}
		if st.Nlink == 0 {
			return unix.ENOENT
		}
		if time.Since(time.Unix(st.Mtim.Unix())) > deadAfter {
			return nil
		}
		if err := openRecord(g.dir, journalName, nil); err != nil || time.Now().After(r.until) {
			return unix.EBUSY
		}
		time.Sleep(100 * time.Millisecond) //nolint:forbidigo // until r.until at most: nothing announces that another process died
	}
}

// recover ends the import of a directory that is locked.
func (g *staging) recover() error {
	if openRecord(g.dir, committedName, nil) == nil {
		return g.settle(nil)
	}
	var b []byte
	err := openRecord(g.dir, journalName, &b)
	var plan []renaming
	if err == nil {
		plan, err = decodeJournal(b)
	}
	if errors.Is(err, unix.ENOENT) || errors.Is(err, errTorn) {
		// Nothing was moved, or what is in old/ could not be moved back.
		if !g.emptyOld(nil) {
			return unix.ENOTEMPTY
		}
		return errors.Join(g.step(), g.settle(nil))
	}
	if err != nil {
		return err
	}
	if err := g.takeBack(plan); err != nil {
		return err
	}
	return g.settle(plan)
}

// takeBack undoes all moves of a plan that were made, the last first.
func (g *staging) takeBack(plan []renaming) error {
	s := &swap{target: pathwalk.DirWalk{Top: g.target}, staging: g}
	if err := s.open(); err != nil {
		return err
	}
	s.old.Mkdir = nil
	defer s.fresh.Top.Close()
	defer s.old.Top.Close()
	defer s.close()
	replaced := map[string]bool{}
	for _, m := range plan {
		if !m.in() {
			replaced[m.name] = true
		}
	}
	for _, m := range slices.Backward(plan) {
		switch {
		case !m.in():
			// A name that exists meanwhile stays, and this one in old/.
			_ = s.rename(&s.old, &s.target, m.name)
		case s.cameIn(m, replaced[m.name]):
			_ = s.rename(&s.target, &s.fresh, m.name)
		}
		if err := g.step(); err != nil {
			return err
		}
	}
	return nil
}

// cameIn says whether what is at a name of the target is what the import has moved there,
// unchanged.
func (s *swap) cameIn(m renaming, replaced bool) bool {
	if kind, err := s.kind(&s.fresh, m.name); err != nil || kind != 0 {
		return false
	}
	if replaced {
		if kind, err := s.kind(&s.old, m.name); err != nil || kind == 0 {
			return false
		}
	}
	look, err := lookOf(&s.target, m.name, nil)
	return err == nil && look == m.look
}
