//go:build linux

package gvisor

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/engine"
)

// maxHostFiles bounds the files of a note.
const maxHostFiles = 10_000

// hostFile is a file of a mount that a saved sandbox had open. Its programs may have mapped it, with pages that are read again
// after a restore: another file would be other code.
type hostFile struct {
	// Path is the path inside the sandbox.
	Path string `json:"path"`
	// Size is in bytes, and Modified in nanoseconds since 1970.
	Size     int64  `json:"size"`
	Modified int64  `json:"modified"`
	Inode    uint64 `json:"inode"`
}

// hostFiles returns the files of mounts that a paused sentry has open.
func hostFiles(sentry int) ([]hostFile, error) {
	dir := filepath.Join("/proc", strconv.Itoa(sentry), "fd")
	open, err := os.ReadDir(dir)
	if err != nil {
		return nil, fmt.Errorf("list the files of the sentry: %w", err)
	}
	var out []hostFile
	seen := map[string]bool{}
	for _, e := range open {
		link := filepath.Join(dir, e.Name())
		name, err := os.Readlink(link)
		rest, ok := strings.CutPrefix(name, goferRoot+"/")
		if err != nil || !ok || seen[rest] {
			continue
		}
		seen[rest] = true
		var st unix.Stat_t
		if unix.Stat(link, &st) != nil || st.Mode&unix.S_IFMT != unix.S_IFREG {
			continue
		}
		if len(out) == maxHostFiles {
			return nil, api.Errorf(api.CodeUnsupported, "more than %d files of mounts are open", maxHostFiles)
		}
		out = append(out, hostFile{Path: "/" + rest, Size: st.Size, Modified: st.Mtim.Nano(), Inode: st.Ino})
	}
	return out, nil
}

// compareHostFiles returns an error if a file of an image's mount is not the file that a memory was saved with. Such mounts show
// directories of the host, as those of image host do, whose packages may have changed. Files of other mounts may change.
func compareHostFiles(files []hostFile, mounts []engine.Mount) error {
	roots := map[string]*os.Root{}
	defer func() {
		for _, r := range roots {
			r.Close()
		}
	}()
	for _, f := range files {
		m, rest := mountOf(mounts, f.Path)
		if m == nil || !m.OfImage {
			continue
		}
		root := roots[m.Source]
		if root == nil {
			var err error
			if root, err = os.OpenRoot(m.Source); err != nil {
				return fmt.Errorf("look for %s: %w", f.Path, err)
			}
			roots[m.Source] = root
		}
		fi, err := root.Lstat(rest)
		if errors.Is(err, fs.ErrNotExist) {
			return changedFile(f.Path, "was removed")
		}
		if err != nil {
			return fmt.Errorf("look for %s: %w", f.Path, err)
		}
		st, ok := fi.Sys().(*syscall.Stat_t)
		if !ok || fi.Size() != f.Size || fi.ModTime().UnixNano() != f.Modified || st.Ino != f.Inode {
			return changedFile(f.Path, "was changed or replaced")
		}
	}
	return nil
}

// mountOf returns the mount that shows a path, and the path in it.
func mountOf(mounts []engine.Mount, name string) (at *engine.Mount, rest string) {
	for n, m := range mounts {
		target := path.Clean(m.Target)
		in, ok := strings.CutPrefix(name, strings.TrimSuffix(target, "/")+"/")
		if ok && (at == nil || len(target) >= len(path.Clean(at.Target))) {
			at, rest = &mounts[n], in
		}
	}
	return at, rest
}

func changedFile(name, how string) error {
	return api.Errorf(api.CodeState, "the file %.300s of this machine %s after the memory was saved: programs that have it open cannot continue", name, how).
		WithHint("bring the file back; or stop the sandbox and start it again, without what its programs had in memory").WithCause(engine.ErrMemoryRefused)
}
