package directory

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"sync"

	"github.com/cloche-dev/cloche/internal/engine/checkpoint"
	"github.com/cloche-dev/cloche/internal/hostfile"
	"github.com/cloche-dev/cloche/internal/workspace"
)

// oldMemory is where a memory is that has been read and is being removed.
const oldMemory = "memory.old"

// MemoryFiles are the files of the saved memory of one sandbox. It is safe for concurrent use.
type MemoryFiles struct {
	mu sync.Mutex // is held by what changes the files

	compressing sync.Mutex // guards cancel
	cancel      context.CancelFunc
}

// Interrupt ends a compression that is in progress: the files are needed. What is compressed by then stays so.
func (m *MemoryFiles) Interrupt() {
	m.compressing.Lock()
	defer m.compressing.Unlock()
	if m.cancel != nil {
		m.cancel()
	}
}

// Hold keeps the files from being changed until release is called.
func (m *MemoryFiles) Hold() (release func()) {
	m.Interrupt()
	m.mu.Lock()
	return m.mu.Unlock
}

// Compress compresses the saved memory of the sandbox of a directory, if there is any, and returns how much less of the disk
// it needs, in bytes. An interrupted one is an error of the context.
func (m *MemoryFiles) Compress(ctx context.Context, dir string) (saved int64, err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	m.compressing.Lock()
	m.cancel = cancel
	m.compressing.Unlock()
	saved, err = checkpoint.Compress(ctx, filepath.Join(dir, Memory), func(name string) bool { return name == RootImage || name == AgentImage })
	m.compressing.Lock()
	m.cancel = nil
	m.compressing.Unlock()
	return saved, err
}

// Create makes the empty directory for the memory of the sandbox of a directory, and returns its path.
func (m *MemoryFiles) Create(dir string) (string, error) {
	if err := m.Remove(dir); err != nil {
		return "", err
	}
	memory := filepath.Join(dir, Memory)
	if err := os.Mkdir(memory, 0o700); err != nil {
		return "", fmt.Errorf("make directory of the memory: %w", err)
	}
	return memory, nil
}

// Remove removes the saved memory of a sandbox, if there is any. It waits for a removal in the background.
func (m *MemoryFiles) Remove(dir string) error {
	defer m.Hold()()
	return removeMemory(dir)
}

// Retire is Remove of a memory that has been read, by background, which runs a function or returns false. failed gets an
// error of that.
func (m *MemoryFiles) Retire(dir string, background func(func()) bool, failed func(error)) {
	release := m.Hold()
	err := workspace.RemovePrivate(filepath.Join(dir, oldMemory))
	if err == nil {
		err = os.Rename(filepath.Join(dir, Memory), filepath.Join(dir, oldMemory))
	}
	if err == nil && background(func() {
		defer release()
		if err := removeMemory(dir); err != nil {
			failed(err)
		}
	}) {
		return
	}
	release()
	if err != nil {
		failed(err)
	}
}

func removeMemory(dir string) error {
	for _, name := range []string{Memory, oldMemory} {
		if err := workspace.RemovePrivate(filepath.Join(dir, name)); err != nil {
			return fmt.Errorf("remove the saved memory: %w", err)
		}
	}
	return nil
}

// The images that a saved memory is of, in its directory.
const (
	RootImage  = "root.erofs"
	AgentImage = "agent.erofs"
)

// pinImage keeps the file of an image for as long as the memory in a directory: as another link to it, or as a copy. What is
// no regular file is not kept.
func pinImage(memory, name, image string) error {
	to := filepath.Join(memory, name)
	if os.Link(image, to) == nil {
		return nil
	}
	from, err := os.Open(image)
	if err != nil {
		return fmt.Errorf("keep an image: %w", err)
	}
	defer from.Close()
	if fi, err := from.Stat(); err != nil || !fi.Mode().IsRegular() {
		return err
	}
	f, err := os.OpenFile(to, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return fmt.Errorf("keep an image: %w", err)
	}
	_, err = io.Copy(f, from)
	if err = errors.Join(err, f.Sync(), f.Close()); err != nil {
		return fmt.Errorf("keep an image: %w", err)
	}
	return nil
}

// PinnedImage returns the path of an image that a memory keeps, or else the path that it had.
func PinnedImage(memory, name, image string) string {
	kept := filepath.Join(memory, name)
	if _, err := os.Lstat(kept); err != nil {
		return image
	}
	return kept
}

// PinImages keeps the images of the root and the agent that a saved memory is of with its files, as pinImage does, and returns when
// that is on the disk.
func PinImages(memory, root, agent string) error {
	return errors.Join(pinImage(memory, RootImage, root), pinImage(memory, AgentImage, agent), hostfile.SyncDirAt(memory))
}
