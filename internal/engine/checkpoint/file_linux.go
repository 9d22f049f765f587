package checkpoint

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/cloche-dev/cloche/internal/ctxio"
)

// File is one file of a checkpoint that an engine writes. With a key it is in memory until Store: nothing of it is on the
// disk unencrypted.
type File struct {
	*os.File
	at   *os.Root
	name string
	key  *Key
	size int64
}

// Create makes the file of a name in a directory that is the caller's until the file is closed. Another one of that name is
// removed. key may be nil.
func Create(at *os.Root, name string, key *Key) (*File, error) {
	for _, suffix := range []string{"", suffixCompressed, suffixEncrypted, suffixCompressed + suffixPartial, suffixEncrypted + suffixPartial} {
		if err := at.Remove(name + suffix); err != nil && !errors.Is(err, os.ErrNotExist) {
			return nil, fmt.Errorf("remove file of the checkpoint: %w", err)
		}
	}
	f := &File{at: at, name: name, key: key}
	var err error
	if key != nil {
		f.File, err = inMemory(name)
	} else {
		f.File, err = at.OpenFile(name, os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
	}
	if err != nil {
		return nil, fmt.Errorf("make file of the checkpoint: %w", err)
	}
	return f, nil
}

// Store returns when the file is on the disk. The caller syncs the directory.
func (f *File) Store(ctx context.Context) (err error) {
	if f.key != nil {
		f.size, err = store(ctx, f.at, f.name+suffixEncrypted, f.File, f.key, func(int64) bool { return true })
		return err
	}
	if err := f.Sync(); err != nil {
		return fmt.Errorf("write the checkpoint: %w", err)
	}
	f.size, err = occupied(f.File)
	return err
}

// Stored returns how much of the disk the file needs after Store, in bytes.
func (f *File) Stored() int64 { return f.size }

// Open opens a file of a checkpoint to read, in whichever form it is stored. size is what it contains, in bytes. The content of
// one that is not stored as it is, is in memory. key may be nil.
func Open(ctx context.Context, dir, name string, key *Key, size int64) (*os.File, error) {
	f, err := os.OpenFile(filepath.Join(dir, name), os.O_RDONLY|unix.O_NOFOLLOW, 0)
	if err == nil || !errors.Is(err, os.ErrNotExist) {
		return f, err
	}
	for _, suffix := range []string{suffixCompressed, suffixEncrypted} {
		from, oerr := os.OpenFile(filepath.Join(dir, name+suffix), os.O_RDONLY|unix.O_NOFOLLOW, 0)
		if oerr != nil {
			continue
		}
		defer from.Close()
		if suffix != suffixEncrypted {
			return unpack(ctx, name, from, nil, size)
		}
		if key == nil {
			return nil, ErrKey
		}
		return unpack(ctx, name, from, key, size)
	}
	return nil, err
}

func unpack(ctx context.Context, name string, from io.Reader, key *Key, size int64) (*os.File, error) {
	f, err := inMemory(name)
	if err != nil {
		return nil, err
	}
	if err = decode(ctx, f, from, key, size); err == nil {
		_, err = f.Seek(0, io.SeekStart)
	}
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}

// Sum returns what a file contains in bytes, and its SHA-256 checksum in hex.
func Sum(ctx context.Context, f *os.File) (size int64, sum string, err error) {
	fi, err := f.Stat()
	if err != nil {
		return 0, "", fmt.Errorf("read the checkpoint: %w", err)
	}
	h := sha256.New()
	if _, err := io.Copy(h, ctxio.Reader(ctx, io.NewSectionReader(f, 0, fi.Size()))); err != nil {
		return 0, "", fmt.Errorf("read the checkpoint: %w", err)
	}
	return fi.Size(), hex.EncodeToString(h.Sum(nil)), nil
}

// inMemory makes a file that has no name and is never on the disk, unless the machine swaps.
func inMemory(name string) (*os.File, error) {
	fd, err := unix.MemfdCreate("cloche-checkpoint-"+name, unix.MFD_CLOEXEC)
	if err != nil {
		return nil, os.NewSyscallError("memfd_create", err)
	}
	return os.NewFile(uintptr(fd), name), nil
}
