//go:build !remoteonly

package workspace

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/cloche-dev/cloche/api"
)

// Dir is a directory that is held open: whatever happens to its path, it stays
// the one that was opened. It is not safe for concurrent use.
type Dir struct {
	file *os.File // opened as a place only
	path string
	stat unix.Stat_t
	// managed: Cloche made it, its files came from sandboxes, and no other user
	// can enter it. Its files keep the ids that they have inside.
	managed bool
	// space is where the disk of the directory is mounted; empty without a disk
	// of its own.
	space string
	// overfull, which may be nil, is an error when more is in the directory than its
	// bounds allow: those of a project do not hold this process.
	overfull func() error
	closing  Closing // what Stage closes
	closer   *Closer // not nil with a closing
	// closed, which may be nil, undoes what it took to open the directory.
	closed func() error
}

// OpenDir opens a directory of the host. No part of path may be a symlink: what
// decided about the path has resolved it first, and a symlink that is there now
// was put there since. Errors are api.CodeInvalid with what would be right;
// their Field is for the caller to set. The caller closes what it gets.
func OpenDir(path string) (*Dir, error) {
	if err := CheckPath(path); err != nil {
		return nil, err
	}
	f, err := openPath(unix.AT_FDCWD, path)
	if err != nil {
		return nil, openError(path, err)
	}
	d, err := newDir(f, false)
	if err != nil {
		return nil, err
	}
	if err := d.check(path); err != nil {
		_ = d.Close()
		return nil, err
	}
	return d, nil
}

func openError(path string, err error) error {
	path = clip(path)
	switch {
	case errors.Is(err, unix.ENOENT):
		return api.Errorf(api.CodeInvalid, "the directory %q does not exist: %w", path, err).
			WithHint("make it first; Cloche makes no directories of the host")
	case errors.Is(err, unix.ELOOP):
		return api.Errorf(api.CodeInvalid, "the path %q leads over a symlink: %w", path, err).
			WithHint("name the directory itself, as realpath prints it")
	case errors.Is(err, unix.ENOTDIR):
		return api.Errorf(api.CodeInvalid, "the path %q is not a directory: %w", path, err).
			WithHint("only directories can be mounted: name the one that the file is in")
	case errors.Is(err, unix.EACCES), errors.Is(err, unix.EPERM):
		return api.Errorf(api.CodeInvalid, "the directory %q cannot be entered by the user that Cloche runs as: %w", path, err).
			WithHint("choose a directory of that user")
	case errors.Is(err, unix.ENAMETOOLONG):
		return api.Errorf(api.CodeInvalid, "the path %q is too long for this machine: %w", path, err)
	}
	return api.Errorf(api.CodeInternal, "the directory %q cannot be opened", path).WithCause(err)
}

// newDir takes over f.
func newDir(f *os.File, managed bool) (*Dir, error) {
	d := &Dir{file: f, managed: managed}
	if err := unix.Fstat(int(f.Fd()), &d.stat); err != nil {
		_ = f.Close()
		return nil, fmt.Errorf("stat directory: %w", err)
	}
	path, err := os.Readlink(procPath(f))
	if err != nil {
		_ = f.Close()
		return nil, fmt.Errorf("read path of directory: %w", err)
	}
	d.path = path
	return d, nil
}

// check refuses anything except a plain directory of a disk at the requested path.
func (d *Dir) check(asked string) error {
	if d.stat.Nlink == 0 || d.path != asked {
		return api.Errorf(api.CodeInvalid, "the directory %q was moved or removed while it was opened", clip(asked)).
			WithHint("ask again")
	}
	var fs unix.Statfs_t
	if err := unix.Fstatfs(int(d.file.Fd()), &fs); err != nil {
		return fmt.Errorf("stat filesystem of directory: %w", err)
	}
	if name, pseudo := pseudoFilesystem(fs.Type); pseudo {
		return api.Errorf(api.CodeInvalid, "the directory %q is part of %s, which is a window into the kernel", clip(asked), name).
			WithHint("only directories with files of their own can be mounted")
	}
	return nil
}

// pseudoFilesystem names the filesystems whose files are the kernel's.
func pseudoFilesystem(magic int64) (string, bool) {
	name, ok := map[int64]string{
		unix.PROC_SUPER_MAGIC: "procfs", unix.SYSFS_MAGIC: "sysfs", unix.CGROUP_SUPER_MAGIC: "a cgroup filesystem",
		unix.CGROUP2_SUPER_MAGIC: "a cgroup filesystem", unix.DEVPTS_SUPER_MAGIC: "devpts", unix.DEBUGFS_MAGIC: "debugfs",
		unix.TRACEFS_MAGIC: "tracefs", unix.SECURITYFS_MAGIC: "securityfs", unix.BPF_FS_MAGIC: "bpffs",
		unix.NSFS_MAGIC: "nsfs", unix.PSTOREFS_MAGIC: "pstore", unix.EFIVARFS_MAGIC: "efivarfs",
		unix.BINFMTFS_MAGIC: "binfmt_misc", unix.SELINUX_MAGIC: "selinuxfs", unix.SMACK_MAGIC: "smackfs",
		unix.HUGETLBFS_MAGIC: "hugetlbfs", unix.RDTGROUP_SUPER_MAGIC: "resctrl", unix.AUTOFS_SUPER_MAGIC: "autofs",
	}[magic]
	return name, ok
}

// Path is where the directory was when it was opened, without symlinks.
func (d *Dir) Path() string { return d.path }

// ID identifies the directory among all that are mounted on this machine.
func (d *Dir) ID() (dev, ino uint64) { return d.stat.Dev, d.stat.Ino }

// Owner is to whom the directory belongs.
func (d *Dir) Owner() (uid, gid uint32) { return d.stat.Uid, d.stat.Gid }

// openAgain is OpenDir for a directory that can be one of Cloche's own.
func openAgain(path string) (*Dir, error) {
	f, err := openPath(unix.AT_FDCWD, path)
	if err != nil {
		return nil, openError(path, err)
	}
	return newDir(f, false)
}

// File returns a descriptor of the directory, for reading. The caller closes it.
func (d *Dir) File() (*os.File, error) { return d.reader() }

// Root returns the directory as a root for its own files. The caller closes it.
func (d *Dir) Root() (*os.Root, error) {
	root, err := os.OpenRoot(procPath(d.file))
	if err != nil {
		return nil, openError(d.path, err)
	}
	return root, nil
}

// Close lets go of the directory. What was staged from it stays.
func (d *Dir) Close() error {
	err := d.file.Close()
	if d.closed != nil {
		err = errors.Join(err, d.closed())
	}
	return err
}

// same reports whether path leads to this directory now.
func (d *Dir) same(path string) (bool, error) {
	f, err := openPath(unix.AT_FDCWD, path)
	if err != nil {
		return false, err
	}
	defer f.Close()
	var st unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &st); err != nil {
		return false, err
	}
	return st.Dev == d.stat.Dev && st.Ino == d.stat.Ino, nil
}

// SweepStaging unmounts whatever is mounted below dir and removes the mount
// points: what a killed process left of Stage. It follows no symlink, and
// removes empty directories only. A dir that does not exist is clean.
func SweepStaging(dir string) error {
	dir, err := filepath.EvalSymlinks(dir) // as mounts are listed
	if errors.Is(err, unix.ENOENT) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("sweep staging: %w", err)
	}
	mounted, err := mountsBelow(dir)
	if err != nil {
		return fmt.Errorf("sweep staging: %w", err)
	}
	// The latest first: it may stand on an earlier one.
	for _, path := range slices.Backward(mounted) {
		if err := unix.Unmount(path, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW); err != nil && !errors.Is(err, unix.EINVAL) && !errors.Is(err, unix.ENOENT) {
			return fmt.Errorf("sweep staging: unmount %s: %w", path, err)
		}
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		return fmt.Errorf("sweep staging: %w", err)
	}
	for _, e := range entries {
		if !strings.HasPrefix(e.Name(), stagedPrefix) {
			continue
		}
		if err := unix.Rmdir(dir + "/" + e.Name()); err != nil && !errors.Is(err, unix.ENOENT) {
			return fmt.Errorf("sweep staging: remove mount point: %w", err)
		}
	}
	return nil
}
