//go:build linux || darwin

package image

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// Bounds of what is copied from /etc. A file over its bound is left out; over
// the others the image is refused, because such an /etc is not what this is for.
const (
	maxCopyFile  = 2 << 20
	maxCopyTotal = 64 << 20
	maxCopyCount = 20_000
	maxCopyDepth = 10
)

// copier collects the host image and notes what it looked at.
type copier struct {
	ctx     context.Context
	host    hostView
	tree    *tree
	sources []seen
	total   int64
	count   int
}

// look stats a file of the machine and notes how it was. A missing file is nil.
func (c *copier) look(name string) (fs.FileInfo, error) {
	at := c.host.at(name)
	s, err := look(at)
	if err != nil {
		return nil, err
	}
	c.sources = append(c.sources, s)
	if s.Missing {
		return nil, nil
	}
	info, err := os.Lstat(at)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	return info, err
}

// copy copies the file, symlink or directory called name. What the world may
// not read, what looks like a private key and what is neither of the three is
// left out.
func (c *copier) copy(name string, depth int) error {
	if err := c.ctx.Err(); err != nil {
		return err
	}
	info, err := c.look(name)
	if err != nil || info == nil || secretName(path.Base(name)) {
		return err
	}
	if c.count++; c.count > maxCopyCount || depth > maxCopyDepth {
		return fmt.Errorf("copy /%s: more than %d files or %d levels", name, maxCopyCount, maxCopyDepth)
	}
	switch {
	case info.Mode()&fs.ModeSymlink != 0:
		// Changing a symlink changes its directory, which is noted already.
		if depth > 0 {
			c.sources = c.sources[:len(c.sources)-1]
		}
		return c.link(name)
	case info.IsDir():
		return c.copyDir(name, info, depth)
	case info.Mode().IsRegular():
		return c.copyFile(name, info)
	}
	return nil
}

func (c *copier) copyDir(name string, info fs.FileInfo, depth int) error {
	if info.Mode().Perm()&0o005 != 0o005 {
		return nil
	}
	if err := c.tree.dir(name, 0o755); err != nil {
		return err
	}
	entries, err := os.ReadDir(c.host.at(name))
	if errors.Is(err, fs.ErrPermission) || errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("read /%s: %w", name, err)
	}
	for _, e := range entries {
		if err := c.copy(name+"/"+e.Name(), depth+1); err != nil {
			return err
		}
	}
	return nil
}

func (c *copier) copyFile(name string, info fs.FileInfo) error {
	if info.Mode().Perm()&0o004 == 0 || info.Size() > maxCopyFile {
		return nil
	}
	data, err := readSmall(c.host.at(name))
	switch {
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, fs.ErrPermission), errors.Is(err, unix.ELOOP):
		return nil // changed since it was looked at, which the next Resolve sees
	case err != nil:
		return fmt.Errorf("copy /%s: %w", name, err)
	case bytes.Contains(data, []byte("PRIVATE KEY-----")):
		return nil
	}
	if c.total += int64(len(data)); c.total > maxCopyTotal {
		return fmt.Errorf("copy /%s: more than %d bytes", name, maxCopyTotal)
	}
	return c.tree.text(name, uint16(0o444|info.Mode().Perm()&0o111), data)
}

// link copies a symlink that leads to what the image may show. Others are left
// out: where they lead to is nothing to know about.
func (c *copier) link(name string) error {
	target, err := os.Readlink(c.host.at(name))
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.EINVAL) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("read link /%s: %w", name, err)
	}
	to := target
	if !path.IsAbs(to) {
		to = path.Join("/", path.Dir(name), to)
	}
	top, _, _ := strings.Cut(strings.TrimPrefix(path.Clean(to), "/"), "/")
	if top != "etc" && !slices.Contains(toolDirs(), top) {
		return nil
	}
	return c.tree.symlink(name, target)
}

// readSmall reads a regular file of at most maxCopyFile bytes and follows no
// symlink in its place.
func readSmall(at string) ([]byte, error) {
	f, err := os.OpenFile(at, os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() {
		return nil, fs.ErrNotExist
	}
	data, err := io.ReadAll(io.LimitReader(f, maxCopyFile+1))
	if err == nil && len(data) > maxCopyFile {
		return nil, fs.ErrNotExist
	}
	return data, err
}

// secretName is true for names that keys, passwords and their like have, in the
// directories of which the rest may be shown.
func secretName(base string) bool {
	lower := strings.ToLower(base)
	return lower == "private" || strings.HasSuffix(lower, ".key") || strings.HasSuffix(lower, ".p12") ||
		strings.HasSuffix(lower, ".pfx") || strings.Contains(lower, "shadow") || strings.Contains(lower, "passwd")
}
