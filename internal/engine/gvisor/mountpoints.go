//go:build linux

package gvisor

import (
	"archive/tar"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"strings"

	erofs "github.com/erofs/go-erofs"

	specs "github.com/opencontainers/runtime-spec/specs-go"

	"github.com/cloche-dev/cloche/api"
)

// mountPoints writes a tar of the directories and files that the image lacks
// and the mounts need. A read-only root starts with them in its upper layer:
// once it is mounted nothing can be made in it any more.
func mountPoints(image string, mounts []specs.Mount) (*os.File, error) {
	f, err := os.Open(image)
	if err != nil {
		return nil, fmt.Errorf("open image: %w", err)
	}
	defer f.Close()
	root, err := erofs.Open(f)
	if err != nil {
		return nil, fmt.Errorf("read image: %w", err)
	}
	out, err := os.CreateTemp("", "mount-points-")
	if err != nil {
		return nil, fmt.Errorf("make mount points: %w", err)
	}
	if err := errors.Join(os.Remove(out.Name()), writeMountPoints(out, root, mounts)); err != nil {
		out.Close()
		return nil, err
	}
	if _, err := out.Seek(0, 0); err != nil {
		out.Close()
		return nil, err
	}
	return out, nil
}

// The sentry wants a header for every directory on the way, with what it shall
// look like; those that the image has keep what they have there.
func writeMountPoints(out *os.File, root fs.FS, mounts []specs.Mount) error {
	w := tar.NewWriter(out)
	top, err := lstat(root, ".")
	if err != nil {
		return fmt.Errorf("read image: %w", err)
	}
	if err := w.WriteHeader(dirHeader(".", top)); err != nil {
		return fmt.Errorf("make mount points: %w", err)
	}
	covered := map[string]bool{} // below these another mount decides
	written := map[string]bool{}
	for _, m := range mounts {
		target := strings.TrimPrefix(path.Clean(m.Destination), "/")
		if isCovered(covered, target) {
			continue
		}
		covered[target] = true
		parts := strings.Split(target, "/")
		for n := range parts {
			name, last := strings.Join(parts[:n+1], "/"), n == len(parts)-1
			if written[name] {
				continue
			}
			info, err := lstat(root, name)
			h := dirHeader(name, info)
			switch {
			case errors.Is(err, fs.ErrNotExist):
				if last && isFile(m) {
					h = &tar.Header{Typeflag: tar.TypeReg, Name: "./" + name, Mode: 0o644}
				}
			case err != nil:
				return fmt.Errorf("read image: %w", err)
			case info.Mode()&fs.ModeSymlink != 0:
				return api.Errorf(api.CodeUnsupported,
					"create sandbox: the mount at /%s goes through the symbolic link /%s of the image, and the root is read-only", target, name)
			case last:
				continue
			}
			if err := w.WriteHeader(h); err != nil {
				return fmt.Errorf("make mount point: %w", err)
			}
			written[name] = true
		}
	}
	if err := w.Close(); err != nil {
		return fmt.Errorf("make mount points: %w", err)
	}
	return nil
}

// dirHeader is the header of a directory: like info, or new without one.
func dirHeader(name string, info fs.FileInfo) *tar.Header {
	h := &tar.Header{Typeflag: tar.TypeDir, Name: "./" + name + "/", Mode: 0o755}
	if name == "." {
		h.Name = "./"
	}
	if info == nil {
		return h
	}
	h.Mode = int64(info.Mode().Perm())
	if info.Mode()&fs.ModeSticky != 0 {
		h.Mode |= 0o1000
	}
	h.ModTime = info.ModTime()
	if st, ok := info.Sys().(*erofs.Stat); ok {
		h.Uid, h.Gid = int(st.UID), int(st.GID)
	}
	return h
}

func lstat(root fs.FS, name string) (fs.FileInfo, error) {
	if l, ok := root.(fs.ReadLinkFS); ok {
		return l.Lstat(name)
	}
	return fs.Stat(root, name)
}

func isCovered(covered map[string]bool, name string) bool {
	for dir := name; dir != "."; dir = path.Dir(dir) {
		if covered[dir] {
			return true
		}
	}
	return false
}

// isFile reports whether a mount's source is no directory.
func isFile(m specs.Mount) bool {
	if m.Type != "bind" {
		return false
	}
	info, err := os.Stat(m.Source)
	return err == nil && !info.IsDir()
}
