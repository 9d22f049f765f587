//go:build !elsewhere

package workspace

import (
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/cloche-dev/cloche"
)

// A project is a directory whose files the kernel counts together, and which it
// holds to its bounds where the home's filesystem was made and mounted for that.
// Inside it lies the same as on a disk: the files, and a layer over them. It needs
// no device and no mount, and what is free of the home's disk is free in it.

const (
	projectExt = ".project"
	// projectOwn is what of a project's blocks and inodes is not the workspace's: its
	// directory and that of its files.
	projectOwn      = 2
	projectOwnBlock = 4096
	// Ids of projects are of one filesystem and of everybody who uses it: ours are
	// drawn from a range that nobody numbers upwards into.
	firstProject, lastProject = 0x4000_0000, 0x7fff_ffff
	projectTries              = 64
)

// projectPath is where the project of a workspace is.
func (t *tenant) projectPath(r *record) string {
	return filepath.Join(t.store.dir, t.name, ownDir, r.ID+projectExt)
}

// makeProject makes an empty project with bounds, and says so in r; false where the
// home holds no projects to bounds, or this process may not set them.
func (t *tenant) makeProject(r *record) (bool, error) {
	own, err := t.own.Open(".")
	if err != nil {
		return false, fmt.Errorf("make project: %w", err)
	}
	defer own.Close()
	if os.Geteuid() != 0 || !holdsProjects(own) {
		return false, nil
	}
	id, err := freeProject(own)
	if err != nil {
		return false, err
	}
	b := r.bounds()
	b.SizeBytes += projectOwn * projectOwnBlock
	b.Inodes += projectOwn
	switch err := setProjectQuota(own, id, b); {
	case errors.Is(err, unix.EPERM): // root of a container
		return false, nil
	case err != nil:
		return false, noRoom(err)
	}
	name := r.ID + projectExt
	err = t.own.Mkdir(name, 0o700)
	if err == nil {
		err = t.within(name, func(dir *os.File) error { return setProject(dir, id) })
	}
	if err != nil {
		return false, noRoom(errors.Join(fmt.Errorf("make project: %w", err), ignoreMissing(t.own.Remove(name)), setProjectQuota(own, id, Bounds{})))
	}
	r.Project = id
	return true, nil
}

// within opens a directory of this tenant's own.
func (t *tenant) within(name string, do func(*os.File) error) error {
	dir, err := t.own.Open(name)
	if err != nil {
		return err
	}
	defer dir.Close()
	return do(dir)
}

// freeProject draws an id that has neither files nor limits. Whoever draws the same
// at this moment draws it of a thousand million.
func freeProject(f *os.File) (uint32, error) {
	for range projectTries {
		id := firstProject + rand.Uint32N(lastProject-firstProject)
		q, err := projectQuota(f, id)
		if err != nil {
			return 0, err
		}
		if q.bytes == 0 && q.inodes == 0 && q.blockHard == 0 && q.inodeHard == 0 {
			return id, nil
		}
	}
	return 0, fmt.Errorf("make project: %d ids were taken", projectTries)
}

// openProject opens the files of a project. One that its filesystem does not hold to
// its bounds any more, such as in a home that was copied elsewhere, is refused.
func (t *tenant) openProject(r *record) (*Dir, error) {
	path := t.projectPath(r)
	err := t.within(r.ID+projectExt, func(dir *os.File) error {
		id, err := projectOf(dir)
		if err == nil && (id != r.Project || !holdsProjects(dir)) {
			e := cloche.Errorf(cloche.CodeUnsupported, "workspace %s is bounded by a quota of the filesystem, which does not hold it to that any more", r.Name)
			e.Field = "workspace.name"
			err = e.WithHint("mount the filesystem of Cloche's home with prjquota again; or copy the files to a new workspace")
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	root, err := openPath(unix.AT_FDCWD, path)
	if err != nil {
		return nil, fmt.Errorf("open project: %w", err)
	}
	defer root.Close()
	f, err := ensureFiles(root, diskFiles, 0o777)
	if err != nil {
		return nil, noRoom(fmt.Errorf("open files of project: %w", err))
	}
	dir, err := newDir(f, true)
	if err != nil {
		return nil, err
	}
	dir.room, dir.overfull = path, func() error { return overfull(f, r) }
	return dir, nil
}

// overfull is EDQUOT when a project is over its bounds.
func overfull(f *os.File, r *record) error {
	q, err := projectQuota(f, r.Project)
	if err == nil && (q.blockHard > 0 && q.bytes > q.blockHard*quotaBlock || q.inodeHard > 0 && q.inodes > q.inodeHard) {
		err = fmt.Errorf("fill project: %w", unix.EDQUOT)
	}
	return err
}

// projectUsage is what the files of a project take.
func (t *tenant) projectUsage(r *record) (used Bounds, err error) {
	err = t.within(".", func(own *os.File) error {
		q, err := projectQuota(own, r.Project)
		used = Bounds{
			SizeBytes: max(0, int64(q.bytes)-projectOwn*projectOwnBlock),
			Inodes:    max(0, int64(q.inodes)-projectOwn),
		}
		return err
	})
	return used, err
}

// dropProject makes the directory of a project trash, and frees its id: nothing is
// held to bounds any more while it is removed. What is gone already is no error.
func (t *tenant) dropProject(name string) error {
	err := t.within(name, func(dir *os.File) error {
		id, err := projectOf(dir)
		if err != nil || id < firstProject || id > lastProject {
			return err
		}
		return setProjectQuota(dir, id, Bounds{})
	})
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return errors.Join(err, ignoreMissing(t.own.Rename(name, trashPrefix+cloche.NewID(""))))
}
