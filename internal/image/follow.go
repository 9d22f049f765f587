package image

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"strings"

	erofs "github.com/erofs/go-erofs"

	"github.com/cloche-dev/cloche/api"
)

// maxFollowed is how many symbolic links are followed, as many as a kernel does.
const maxFollowed = 40

// Follow is where an absolute path leads in a root filesystem: the same path without
// symbolic links. A path that does not exist leads to itself, so that it can be made.
func (r Rootfs) Follow(name string) (string, error) {
	f, err := os.Open(r.Image)
	if err != nil {
		return "", fmt.Errorf("open image: %w", err)
	}
	defer f.Close()
	root, err := erofs.Open(f)
	if err != nil {
		return "", fmt.Errorf("read image: %w", err)
	}
	links, ok := root.(fs.ReadLinkFS)
	if !ok {
		return "", errors.New("read image: its links cannot be read")
	}
	return follow(links, name)
}

func follow(root fs.ReadLinkFS, name string) (string, error) {
	at, left := "/", strings.Split(name, "/")
	for followed := 0; len(left) > 0; {
		part := left[0]
		left = left[1:]
		switch part {
		case "", ".":
			continue
		case "..":
			at = path.Dir(at)
			continue
		}
		next := path.Join(at, part)
		info, err := root.Lstat(next[1:])
		switch {
		case errors.Is(err, fs.ErrNotExist):
			// Below a missing directory there are no symlinks.
			return path.Join(next, path.Join(left...)), nil
		case err != nil:
			return "", fmt.Errorf("read image: %w", err)
		case info.Mode()&fs.ModeSymlink == 0:
			at = next
			continue
		}
		if followed++; followed > maxFollowed {
			return "", api.Errorf(api.CodeUnsupported, "the image has symbolic links at %.200q that lead nowhere", name)
		}
		target, err := root.ReadLink(next[1:])
		if err != nil {
			return "", fmt.Errorf("read image: %w", err)
		}
		if path.IsAbs(target) {
			at = "/"
		}
		left = append(strings.Split(target, "/"), left...)
	}
	return at, nil
}
