//go:build linux

package main

import (
	"bytes"
	"encoding/json"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
)

// finding is a file of the kernel that can be read or written.
type finding struct {
	Path string `json:"path"`
	// Read is set when it has content that can be read.
	Read bool `json:"read,omitempty"`
	// Write is set when it can be opened to write to it.
	Write bool `json:"write,omitempty"`
	// Words are those of the words given that are in its path, its content or, of a link, in
	// where it leads.
	Words []string `json:"words,omitempty"`
}

const (
	maxAudited  = 20000     // files
	maxReadFile = 256 << 10 // bytes of each
)

// audit prints what can be read and written of /proc and /sys, a line for each, and which of
// these words it finds there. Of processes it looks at its own only.
func audit(words []string) error {
	out := json.NewEncoder(os.Stdout)
	count := 0
	for _, top := range []string{"/proc", "/sys"} {
		err := filepath.WalkDir(top, func(path string, d fs.DirEntry, err error) error {
			if err != nil {
				return nil
			}
			if d.IsDir() && otherProcess(path) {
				return fs.SkipDir
			}
			if count++; count > maxAudited {
				return fs.SkipAll
			}
			if f := look(path, words); f.Read || f.Write || len(f.Words) > 0 {
				return out.Encode(f)
			}
			return nil
		})
		if err != nil {
			return err
		}
	}
	// What is below them is reached by links that the walk does not follow.
	for _, dir := range []string{"/proc/self", "/proc/self/net"} {
		entries, _ := os.ReadDir(dir)
		for _, e := range entries {
			if f := look(filepath.Join(dir, e.Name()), words); f.Read || f.Write || len(f.Words) > 0 {
				if err := out.Encode(f); err != nil {
					return err
				}
			}
		}
	}
	return nil
}

func otherProcess(path string) bool {
	rest, ok := strings.CutPrefix(path, "/proc/")
	return ok && rest[0] >= '1' && rest[0] <= '9'
}

func look(path string, words []string) finding {
	f := finding{Path: path}
	var text []byte
	// Not by the directory's entry, which does not know what is mounted on it.
	info, err := os.Lstat(path)
	switch {
	case err != nil || path == "/proc/self/cmdline": // which has the words
		return f
	case info.Mode()&fs.ModeSymlink != 0:
		to, _ := os.Readlink(path)
		text = []byte(to)
	case info.Mode().IsRegular():
		text = begin(path)
		f.Read = len(text) > 0
		f.Write = takesWrites(path)
	}
	for _, w := range words {
		if bytes.Contains(text, []byte(w)) || strings.Contains(path, w) {
			f.Words = append(f.Words, w)
		}
	}
	return f
}

// takesWrites reports whether a file of the kernel takes a write. Uid 0 may open
// more than that. Nothing is written.
func takesWrites(path string) bool {
	fd, err := syscall.Open(path, syscall.O_WRONLY|syscall.O_NONBLOCK|syscall.O_CLOEXEC, 0)
	if err != nil {
		return false
	}
	defer syscall.Close(fd)
	_, err = syscall.Write(fd, nil)
	return err == nil
}

// begin reads the beginning of a file, and never waits.
func begin(path string) []byte {
	fd, err := syscall.Open(path, syscall.O_RDONLY|syscall.O_NONBLOCK|syscall.O_CLOEXEC, 0)
	if err != nil {
		return nil
	}
	defer syscall.Close(fd)
	b := make([]byte, maxReadFile)
	n := 0
	for n < len(b) {
		m, err := syscall.Read(fd, b[n:])
		if err != nil || m <= 0 {
			break
		}
		n += m
	}
	return b[:n]
}
