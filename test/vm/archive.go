//go:build linux

package vm

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
)

// archive writes the form of archive that kernels unpack as their first root: cpio,
// "newc". The first error stays.
type archive struct {
	w     io.Writer
	err   error
	inode int
}

func (a *archive) file(name string, mode uint32, path string) {
	data, err := os.ReadFile(path)
	if err != nil && a.err == nil {
		a.err = err
	}
	a.data(name, mode, data)
}

func (a *archive) data(name string, mode uint32, data []byte) {
	const regular = 0o100000
	a.inode++
	a.write(fmt.Appendf(nil, "070701%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x",
		a.inode, regular|mode, 0, 0, 1, 0, len(data), 0, 0, 0, 0, len(name)+1, 0))
	const header = 110
	a.write([]byte(name + "\x00"))
	a.pad(header + len(name) + 1)
	a.write(data)
	a.pad(len(data))
}

// pad fills up to a multiple of four.
func (a *archive) pad(n int) { a.write(make([]byte, (4-n%4)%4)) }

func (a *archive) write(b []byte) {
	if a.err == nil {
		_, a.err = a.w.Write(b)
	}
}

func (a *archive) close() error {
	a.data("TRAILER!!!", 0, nil)
	return a.err
}

// copyFile copies a file with its permissions, and makes the directories above it.
func copyFile(to, from string) error {
	if err := os.MkdirAll(filepath.Dir(to), 0o755); err != nil {
		return err
	}
	data, err := os.ReadFile(from)
	if err != nil {
		return err
	}
	fi, err := os.Stat(from)
	if err != nil {
		return err
	}
	return os.WriteFile(to, data, fi.Mode().Perm())
}
