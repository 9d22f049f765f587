//go:build linux

package hostrootfs

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"

	erofs "github.com/erofs/go-erofs"
	"golang.org/x/sys/unix"

	"github.com/cloche-dev/cloche/internal/engine/pidfd"
)

// Images makes root filesystems of EROFS images. The kernel mounts them where it can
// and root asks it to: one superblock for each image, so that all sandboxes of it
// share what is in memory. Otherwise they are unpacked once, and so is an image whose
// filesystem lets the kernel mount no file of it. It is safe for concurrent use.
type Images struct {
	dir    string // where they are unpacked
	kernel bool   // the kernel mounts them

	mu     sync.Mutex
	mounts []imageMount // the oldest first
}

type imageMount struct {
	key string
	fd  int
}

// NewImages makes images; where the kernel is not asked to mount them they are
// unpacked below dir.
func NewImages(dir string, root bool) *Images {
	return &Images{dir: dir, kernel: root && mountsImages()}
}

// Mounted reports whether the kernel mounts the images: otherwise they are unpacked.
func (im *Images) Mounted() bool { return im.kernel }

// maxImageMounts is how many superblocks are kept.
const maxImageMounts = 16

// key names the content of an image's file.
func imageKey(path string, st *unix.Stat_t) string {
	h := sha256.Sum256(fmt.Appendf(nil, "%s\x00%d %d %d %d %d", path, st.Dev, st.Ino, st.Size, st.Mtim.Sec, st.Mtim.Nsec))
	return hex.EncodeToString(h[:16])
}

// Mount returns a new detached mount of the image, read-only, or (fd is -1) the
// directory that it is unpacked in. The descriptor is the caller's.
func (im *Images) Mount(path string) (fd int, dir string, err error) {
	var st unix.Stat_t
	if err := unix.Stat(path, &st); err != nil {
		return -1, "", fmt.Errorf("open image: %w", err)
	}
	key := imageKey(path, &st)
	im.mu.Lock()
	defer im.mu.Unlock()
	if !im.kernel {
		dir, err = im.unpacked(key, path)
		return -1, dir, err
	}
	i := slices.IndexFunc(im.mounts, func(m imageMount) bool { return m.key == key })
	if i < 0 {
		fd, err := mountImage(path)
		if notThere(err) {
			dir, uerr := im.unpacked(key, path)
			if uerr != nil {
				return -1, "", errors.Join(uerr, err)
			}
			return -1, dir, nil
		}
		if err != nil {
			return -1, "", err
		}
		if len(im.mounts) >= maxImageMounts {
			_ = unix.Close(im.mounts[0].fd)
			im.mounts = slices.Delete(im.mounts, 0, 1)
		}
		im.mounts = append(im.mounts, imageMount{key, fd})
		i = len(im.mounts) - 1
	}
	fd, err = unix.OpenTree(im.mounts[i].fd, "", unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC|unix.AT_EMPTY_PATH)
	if errors.Is(err, unix.EINVAL) {
		// A kernel that clones nothing that is attached nowhere.
		fd, err = mountImage(path)
	}
	if err != nil {
		return -1, "", fmt.Errorf("mount image: %w", err)
	}
	return fd, "", nil
}

// notThere says of an image that could not be mounted that this may be for the filesystem
// which its file is on: of one in memory, or of some that lie upon others, the kernel
// mounts no files.
func notThere(err error) bool {
	return errors.Is(err, unix.EINVAL) || errors.Is(err, unix.ENOTBLK) || errors.Is(err, unix.EOPNOTSUPP)
}

// Close lets go of the superblocks that no sandbox has.
func (im *Images) Close() {
	im.mu.Lock()
	defer im.mu.Unlock()
	for _, m := range im.mounts {
		_ = unix.Close(m.fd)
	}
	im.mounts = nil
}

// mountImage makes a detached read-only mount of an image's file.
func mountImage(path string) (int, error) {
	// Not by its path, which everybody could read inside.
	f, err := os.Open(path)
	if err != nil {
		return -1, fmt.Errorf("open image: %w", err)
	}
	defer f.Close()
	fs, err := unix.Fsopen("erofs", unix.FSOPEN_CLOEXEC)
	if err != nil {
		return -1, fmt.Errorf("mount image: %w", err)
	}
	defer unix.Close(fs)
	err = unix.FsconfigSetString(fs, "source", "/proc/self/fd/"+strconv.FormatUint(uint64(pidfd.RawFD(f)), 10))
	if err == nil {
		err = unix.FsconfigSetFlag(fs, "ro")
	}
	if err == nil {
		err = unix.FsconfigCreate(fs)
	}
	if err != nil {
		return -1, fmt.Errorf("mount image: %w", err)
	}
	fd, err := unix.Fsmount(fs, unix.FSMOUNT_CLOEXEC, unix.MOUNT_ATTR_RDONLY|unix.MOUNT_ATTR_NODEV)
	if err != nil {
		return -1, fmt.Errorf("mount image: %w", err)
	}
	return fd, nil
}

// mountsImages reports whether the kernel mounts EROFS images, of files.
func mountsImages() bool {
	fs, err := unix.Fsopen("erofs", unix.FSOPEN_CLOEXEC)
	if err != nil {
		return false
	}
	_ = unix.Close(fs)
	return newerThan("6.12")
}

// newerThan compares the first two numbers of the kernel's release.
func newerThan(than string) bool {
	var u unix.Utsname
	if unix.Uname(&u) != nil {
		return false
	}
	var a, b, c, d int
	if n, _ := fmt.Sscanf(unix.ByteSliceToString(u.Release[:]), "%d.%d", &a, &b); n != 2 {
		return false
	}
	_, _ = fmt.Sscanf(than, "%d.%d", &c, &d)
	return a > c || a == c && b >= d
}

// unpacked is the directory with the content of an image, unpacked when it is not
// there yet. Which image it is of lies beside it.
func (im *Images) unpacked(key, path string) (string, error) {
	dir := filepath.Join(im.dir, key)
	if _, err := os.Stat(dir); err == nil {
		return dir, nil
	}
	if err := os.MkdirAll(im.dir, 0o700); err != nil {
		return "", fmt.Errorf("unpack image: %w", err)
	}
	im.prune()
	tmp, err := os.MkdirTemp(im.dir, "new-")
	if err != nil {
		return "", fmt.Errorf("unpack image: %w", err)
	}
	if err := unpack(path, tmp); err != nil {
		return "", errors.Join(err, removeAll(tmp))
	}
	// What has its name is believed to be whole, also after a power cut.
	if err := syncAll(tmp); err != nil {
		return "", errors.Join(fmt.Errorf("unpack image: %w", err), removeAll(tmp))
	}
	if err := noteImage(dir+".of", path); err != nil {
		return "", errors.Join(fmt.Errorf("unpack image: %w", err), removeAll(tmp))
	}
	if err := os.Rename(tmp, dir); err != nil && !errors.Is(err, fs.ErrExist) {
		return "", errors.Join(fmt.Errorf("unpack image: %w", err), removeAll(tmp))
	}
	return dir, nil
}

// prune removes what was unpacked of images that are gone: who uses one keeps its
// file.
func (im *Images) prune() {
	names, _ := filepath.Glob(filepath.Join(im.dir, "*.of"))
	for _, name := range names {
		path, err := os.ReadFile(name)
		var st unix.Stat_t
		if err != nil {
			continue
		}
		dir := strings.TrimSuffix(name, ".of")
		if unix.Stat(string(path), &st) == nil && imageKey(string(path), &st) == filepath.Base(dir) {
			continue
		}
		if removeAll(dir) == nil {
			_ = os.Remove(name)
		}
	}
}

// syncAll writes everything of the filesystem that a directory lies on to the disk.
func syncAll(dir string) error {
	f, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer f.Close()
	return unix.Syncfs(int(f.Fd()))
}

// noteImage writes down of which image a directory is.
func noteImage(name, path string) error {
	f, err := os.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_TRUNC|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return err
	}
	_, err = f.WriteString(path)
	return errors.Join(err, f.Close())
}

// removeAll removes a directory below the directory of unpacked images. No sandbox has
// ever been able to write there.
func removeAll(dir string) error {
	root, err := os.OpenRoot(filepath.Dir(dir))
	if err != nil {
		return fmt.Errorf("remove unpacked image: %w", err)
	}
	defer root.Close()
	return root.RemoveAll(filepath.Base(dir))
}

// unpack writes what an image holds below dir. Root keeps the owners; for another
// user all belongs to one, as in the sandbox. Devices and attributes are not kept.
func unpack(image, dir string) error {
	f, err := os.Open(image)
	if err != nil {
		return fmt.Errorf("open image: %w", err)
	}
	defer f.Close()
	src, err := erofs.Open(f)
	if err != nil {
		return fmt.Errorf("read image: %w", err)
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		return fmt.Errorf("unpack image: %w", err)
	}
	defer root.Close()
	u := unpacking{src: src, root: root, links: map[int64]string{}}
	if err := fs.WalkDir(src, ".", u.entry); err != nil {
		return fmt.Errorf("unpack image: %w", err)
	}
	// Not before everything is in them.
	for _, d := range slices.Backward(u.dirs) {
		if err := root.Chmod(d.name, d.mode); err != nil {
			return fmt.Errorf("unpack image: %w", err)
		}
	}
	return nil
}

type unpacking struct {
	src   fs.FS
	root  *os.Root
	links map[int64]string
	dirs  []dirMode
}

type dirMode struct {
	name string
	mode fs.FileMode
}

func (u *unpacking) entry(name string, d fs.DirEntry, err error) (made error) {
	if err != nil {
		return err
	}
	info, err := d.Info()
	if err != nil {
		return err
	}
	if st, ok := info.Sys().(*erofs.Stat); ok && os.Geteuid() == 0 {
		defer func() {
			if made == nil && name != "." {
				made = u.root.Lchown(name, int(st.UID), int(st.GID))
			}
		}()
	}
	mode := info.Mode()
	if st, ok := info.Sys().(*erofs.Stat); ok {
		mode = st.Mode // it has the sticky bit
	}
	switch {
	case mode.IsDir():
		u.dirs = append(u.dirs, dirMode{name, mode.Perm() | mode&fs.ModeSticky | 0o700})
		if name == "." {
			return nil
		}
		return u.root.Mkdir(name, 0o700)
	case mode&fs.ModeSymlink != 0:
		links, ok := u.src.(fs.ReadLinkFS)
		if !ok {
			return errors.New("the image's links cannot be read")
		}
		to, err := links.ReadLink(name)
		if err != nil {
			return err
		}
		return u.root.Symlink(to, name)
	case mode.IsRegular():
		return u.file(name, info)
	}
	return nil
}

func (u *unpacking) file(name string, info fs.FileInfo) error {
	if st, ok := info.Sys().(*erofs.Stat); ok && st.Nlink > 1 {
		if first, ok := u.links[st.Ino]; ok {
			return u.root.Link(first, name)
		}
		u.links[st.Ino] = name
	}
	in, err := u.src.Open(name)
	if err != nil {
		return err
	}
	defer in.Close()
	out, err := u.root.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	_, err = io.Copy(out, in)
	return errors.Join(err, out.Chmod(info.Mode().Perm()), out.Close(), u.root.Chtimes(name, info.ModTime(), info.ModTime()))
}
