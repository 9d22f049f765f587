package checkpoint

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"filippo.io/age"
	"github.com/klauspost/compress/zstd"

	"github.com/cloche-dev/cloche/internal/ctxio"
	"github.com/cloche-dev/cloche/internal/hostfile"
)

// What the names of stored files end in.
const (
	suffixCompressed = ".zst"
	suffixEncrypted  = ".zst.age"
	suffixPartial    = ".partial"
)

// encode writes what from has to w: compressed, and then encrypted if key is not nil. It ends with the context.
func encode(ctx context.Context, w io.Writer, from io.Reader, key *Key) (err error) {
	sealed := io.WriteCloser(nopCloser{w})
	if key != nil {
		if sealed, err = age.Encrypt(w, key.recipient); err != nil {
			return fmt.Errorf("encrypt the checkpoint: %w", err)
		}
	}
	packed, err := zstd.NewWriter(sealed, zstd.WithEncoderLevel(zstd.SpeedFastest), zstd.WithEncoderConcurrency(2), zstd.WithWindowSize(1<<20))
	if err == nil {
		_, err = io.Copy(packed, ctxio.Reader(ctx, from))
		err = errors.Join(err, packed.Close())
	}
	if err == nil {
		err = sealed.Close()
	}
	if err != nil {
		return fmt.Errorf("write the checkpoint: %w", err)
	}
	return nil
}

// decode is the inverse of encode. More than size bytes are ErrDamaged, and so is less.
func decode(ctx context.Context, w io.Writer, from io.Reader, key *Key, size int64) error {
	if key != nil {
		opened, err := age.Decrypt(from, key.identities...)
		if _, ok := errors.AsType[*age.NoIdentityMatchError](err); ok {
			return ErrKey
		}
		if err != nil {
			return fmt.Errorf("%w: %w", ErrDamaged, err)
		}
		from = opened
	}
	unpacked, err := zstd.NewReader(from, zstd.WithDecoderConcurrency(2), zstd.WithDecoderMaxWindow(8<<20))
	if err != nil {
		return fmt.Errorf("%w: %w", ErrDamaged, err)
	}
	defer unpacked.Close()
	written := &writer{w: w}
	n, err := io.Copy(written, io.LimitReader(ctxio.Reader(ctx, unpacked), size+1))
	switch {
	case written.err != nil:
		return fmt.Errorf("unpack the checkpoint: %w", written.err)
	case ctx.Err() != nil:
		return fmt.Errorf("unpack the checkpoint: %w", ctx.Err())
	case err != nil:
		return fmt.Errorf("%w: %w", ErrDamaged, err)
	case n != size:
		return fmt.Errorf("%w: it has another size", ErrDamaged)
	}
	return nil
}

// worthwhile is how much of its size on the disk a compressed file may have, in percent. More is not kept compressed.
const worthwhile = 90

// Compress compresses the files of a checkpoint in a directory, except those that keep returns true for, and returns the
// space on the disk that the compressed ones need less, in bytes. Open finds a file at every moment. It ends with the
// context, and what is compressed by then stays so.
func Compress(ctx context.Context, dir string, keep func(name string) bool) (saved int64, err error) {
	at, err := os.OpenRoot(dir)
	if err != nil {
		return 0, fmt.Errorf("compress the checkpoint: %w", err)
	}
	defer at.Close()
	entries, err := fs.ReadDir(at.FS(), ".")
	if err != nil {
		return 0, fmt.Errorf("compress the checkpoint: %w", err)
	}
	for _, e := range entries {
		name := e.Name()
		if strings.HasSuffix(name, suffixPartial) { // of a daemon that died
			err = errors.Join(err, at.Remove(name))
			continue
		}
		if !e.Type().IsRegular() || keep(name) || strings.HasSuffix(name, suffixCompressed) || strings.HasSuffix(name, suffixEncrypted) {
			continue
		}
		less, cerr := compress(ctx, at, name)
		saved += less
		if err = errors.Join(err, cerr); ctx.Err() != nil {
			break
		}
	}
	return saved, err
}

// compress replaces one file by a compressed one, if that is smaller.
func compress(ctx context.Context, at *os.Root, name string) (saved int64, err error) {
	from, err := at.Open(name)
	if err != nil {
		return 0, fmt.Errorf("compress the checkpoint: %w", err)
	}
	defer from.Close()
	before, err := occupied(from)
	if err != nil {
		return 0, err
	}
	after, err := store(ctx, at, name+suffixCompressed, from, nil, func(size int64) bool { return size*100 <= before*worthwhile })
	if err != nil || after < 0 {
		return 0, err
	}
	if err := at.Remove(name); err != nil {
		return 0, fmt.Errorf("compress the checkpoint: %w", err)
	}
	return before - after, nil
}

// store writes what from has to a file of its own, and returns its size on the disk when it is there. It is removed if keep
// returns false for the size, which is -1 then.
func store(ctx context.Context, at *os.Root, name string, from *os.File, key *Key, keep func(size int64) bool) (size int64, err error) {
	fi, err := from.Stat()
	if err != nil {
		return 0, fmt.Errorf("write the checkpoint: %w", err)
	}
	partial := name + suffixPartial
	to, err := at.OpenFile(partial, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return 0, fmt.Errorf("write the checkpoint: %w", err)
	}
	err = encode(ctx, to, io.NewSectionReader(from, 0, fi.Size()), key)
	if err == nil {
		if err = to.Sync(); err != nil {
			err = fmt.Errorf("write the checkpoint: %w", err)
		}
	}
	if err == nil {
		size, err = occupied(to)
	}
	err = errors.Join(err, to.Close())
	if err == nil && keep(size) {
		if err = at.Rename(partial, name); err == nil {
			err = hostfile.SyncDirAt(filepath.Clean(at.Name()))
		}
		return size, err
	}
	return -1, errors.Join(err, at.Remove(partial))
}

// writer keeps the error of a write, to tell it from the errors of what is read.
type writer struct {
	w   io.Writer
	err error
}

// Write implements io.Writer.
func (w *writer) Write(p []byte) (int, error) {
	n, err := w.w.Write(p)
	if err != nil {
		w.err = err
	}
	return n, err
}

// nopCloser is a writer whose Close does nothing.
type nopCloser struct{ io.Writer }

// Close implements io.Closer.
func (nopCloser) Close() error { return nil }
