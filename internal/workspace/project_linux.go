//go:build !remoteonly

package workspace

import (
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/cloche-dev/cloche/api"
)

// A project is a directory whose files the kernel counts together, and which it
// holds to its bounds where the home's filesystem was made and mounted for that.
// Inside it lies the same as on a disk: the files, and a layer over them. It needs
// no device and no mount, and what is free of the home's disk is free in it.

const (
	projectExt = ".project"
	// projectOwn is what of a project's blocks and inodes is not the workspace's: its
	// directory and the directory of its files.
	projectOwn      = 2
	projectOwnBlock = 4096
	// Ids of projects are shared by all users of one filesystem: these are drawn from a
	// range that counting up does not reach.
	firstProject, lastProject = 0x4000_0000, 0x7fff_ffff
	projectTries              = 64
)

// projectPath is where the project of a workspace is.
func (t *tenant) projectPath(r *record) string {
	return filepath.Join(t.store.dir, t.name, ownDir, r.ID+projectExt)
}

// HasProjects says whether the filesystem of dir holds directories to bounds, as projects
// that this process makes. In a directory that is of a project itself it makes none: what
// is in it would be outside the bounds of that project.
func HasProjects(dir string) bool {
	if os.Geteuid() != 0 {
		return false
	}
	f, err := os.Open(dir)
	if err != nil {
		return false
	}
	defer f.Close()
	return takesProjects(f)
}

// takesProjects is HasProjects of an open directory, for root.
func takesProjects(dir *os.File) bool {
	if !holdsProjects(dir) {
		return false
	}
	if of, err := projectOf(dir); err != nil || of != 0 {
		return false
	}
	_, err := projectQuota(dir, firstProject) // refused to root of a container, as setting one is
	return err == nil
}

// makeProject makes an empty project with bounds, and says so in r; false where the
// home holds no projects to bounds, or this process may not set them.
func (t *tenant) makeProject(r *record) (bool, error) {
	id, err := makeProjectIn(t.own, r.ID+projectExt, r.bounds())
	r.Project = id
	return id != 0, err
}

// makeProjectIn makes a directory that is an empty project with bounds, and returns its
// id; 0 where there are no projects. The directory has its id before the id has limits: a process
// that finds what a crash left frees both, and no id is taken without a directory that has it.
func makeProjectIn(own *os.Root, name string, b Bounds) (id uint32, err error) {
	parent, err := own.Open(".")
	if err != nil {
		return 0, fmt.Errorf("make project: %w", err)
	}
	defer parent.Close()
	if os.Geteuid() != 0 || !takesProjects(parent) {
		return 0, nil
	}
	if err := own.Mkdir(name, 0o700); err != nil {
		return 0, noSpace(fmt.Errorf("make project: %w", err))
	}
	err = inDir(own, name, func(dir *os.File) (err error) {
		if id, err = takeProject(dir); err != nil {
			return err
		}
		b.SizeBytes += projectOwn * projectOwnBlock
		b.Inodes += projectOwn
		return setProjectQuota(dir, id, b)
	})
	if err != nil {
		return 0, noSpace(errors.Join(err, ignoreMissing(own.Remove(name))))
	}
	return id, nil
}

// takeProject makes an empty directory a project of an id that has neither files nor
// limits. A process that draws the same id at this moment sees that it is not alone.
func takeProject(dir *os.File) (uint32, error) {
	for range projectTries {
		id := firstProject + rand.Uint32N(lastProject-firstProject)
		q, err := projectQuota(dir, id)
		if err != nil {
			return 0, err
		}
		if !q.isFree() {
			continue
		}
		if err := setProject(dir, id); err != nil {
			return 0, err
		}
		if q, err = projectQuota(dir, id); err != nil {
			return 0, err
		}
		if q.inodes == 1 && q.blockHard == 0 && q.inodeHard == 0 {
			return id, nil
		}
	}
	return 0, fmt.Errorf("make project: %d ids were taken", projectTries)
}

// within opens a directory of this tenant's own.
func (t *tenant) within(name string, do func(*os.File) error) error { return inDir(t.own, name, do) }

func inDir(own *os.Root, name string, do func(*os.File) error) error {
	dir, err := own.Open(name)
	if err != nil {
		return err
	}
	defer dir.Close()
	return do(dir)
}

// openProject opens the files of a project. One that its filesystem does not hold to
// its bounds any more, such as in a home that was copied elsewhere, is refused.
func (t *tenant) openProject(r *record) (*Dir, error) {
	path := t.projectPath(r)
	err := t.within(r.ID+projectExt, func(dir *os.File) error {
		id, err := projectOf(dir)
		if err == nil && (id != r.Project || !holdsProjects(dir)) {
			e := api.Errorf(api.CodeUnsupported, "workspace %s is bounded by a quota of the filesystem, which does not hold it to that any more", r.Name)
			e.Field = "workspace.name"
			err = e.WithHint("mount the filesystem of Cloche's home with prjquota again; or copy the files to a new workspace")
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	return openProjectAt(path, r.Project)
}

// openProjectAt opens the files of the project whose directory is at path.
func openProjectAt(path string, id uint32) (*Dir, error) {
	root, err := openPath(unix.AT_FDCWD, path)
	if err != nil {
		return nil, fmt.Errorf("open project: %w", err)
	}
	defer root.Close()
	f, err := ensureFiles(root, diskFiles, 0o777)
	if err != nil {
		return nil, noSpace(fmt.Errorf("open files of project: %w", err))
	}
	dir, err := newDir(f, true)
	if err != nil {
		return nil, err
	}
	dir.space, dir.overfull = path, func() error { return overfull(f, id) }
	return dir, nil
}

// overfull is EDQUOT when a project is over its bounds.
func overfull(f *os.File, id uint32) error {
	q, err := projectQuota(f, id)
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

// freeProject takes its bounds from the project in own that has this name. Its id stays
// taken for as long as anything carries it. In a home that has moved to where there are no
// projects, or none for this process, there is nothing to free, and what is there can
// be removed.
func freeProject(own *os.Root, name string) error {
	return inDir(own, name, func(dir *os.File) error {
		id, err := projectOf(dir)
		switch {
		case errors.Is(err, unix.ENOTTY), errors.Is(err, unix.EOPNOTSUPP):
			return nil
		case err != nil:
			return err
		case id < firstProject || id > lastProject || !holdsProjects(dir):
			return nil
		}
		if err := setProjectQuota(dir, id, Bounds{}); !errors.Is(err, unix.EPERM) {
			return err
		}
		return nil
	})
}

// dropProject makes the directory of a project trash, and frees its id: nothing is
// held to bounds any more while it is removed. What is gone already is no error.
func (t *tenant) dropProject(name string) error {
	err := freeProject(t.own, name)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return errors.Join(err, ignoreMissing(t.own.Rename(name, trashPrefix+api.NewID(""))))
}
