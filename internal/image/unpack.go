package image

import (
	"bufio"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path"
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/archive"
	"github.com/cloche-dev/cloche/internal/hostfile"
)

// layersAtOnce is how many layers of one image are fetched and read at a time.
const layersAtOnce = 3

// layerSource is where a layer comes from.
type layerSource struct {
	info api.ImageLayer
	// open gives the layer, compressed or not, all of it verified against its
	// digest.
	open func(ctx context.Context) (io.ReadCloser, error)
}

// contents is the part of an image file that holds what is in files. Layers are
// read at the same time, so each file's place is reserved before it is written.
type contents struct {
	f    *os.File
	next atomic.Int64 // the first free block
}

// reserve returns the first of as many blocks as size bytes need.
func (c *contents) reserve(size int64) int64 {
	n := blocks(size)
	return c.next.Add(n) - n
}

// write writes size bytes of r from block on. Zeros are left out: nothing was
// there before.
func (c *contents) write(ctx context.Context, r io.Reader, block, size int64, buf []byte) error {
	for at := block * blockSize; size > 0; {
		if err := ctx.Err(); err != nil {
			return err
		}
		part := buf[:min(size, int64(len(buf)))]
		if n, err := io.ReadFull(r, part); err != nil {
			return fmt.Errorf("the content ends %d bytes early: %w", size-int64(n), err)
		}
		if part[0] != 0 || len(bytes.TrimLeft(part, "\x00")) > 0 {
			if _, err := c.f.WriteAt(part, at); err != nil {
				return fmt.Errorf("write content: %w", err)
			}
		}
		at, size = at+int64(len(part)), size-int64(len(part))
	}
	return nil
}

// maxNotes bounds how many different things a layer's notes name.
const maxNotes = 32

// dropped counts what a layer has and an image does not show.
type dropped struct {
	kinds  map[string]int // by what it is
	sample map[string]string
}

func (d *dropped) add(what, name string) {
	if len(d.kinds) >= maxNotes && d.kinds[what] == 0 {
		what = "something"
	}
	if d.kinds == nil {
		d.kinds, d.sample = map[string]int{}, map[string]string{}
	}
	if d.kinds[what]++; d.kinds[what] == 1 {
		d.sample[what] = name
	}
}

func (d *dropped) notes() (notes []string) {
	for _, what := range slices.Sorted(maps.Keys(d.kinds)) {
		n := d.kinds[what]
		note := fmt.Sprintf("%s of /%s is left out", what, strings.ToValidUTF8(d.sample[what], "�"))
		if n > 1 {
			note += fmt.Sprintf(", and of %d more", n-1)
		}
		notes = append(notes, note)
	}
	return notes
}

// readLayer reads a layer to its end, puts the content of its files into out and
// returns its entries. The layer's uncompressed digest must be want, unless that
// is empty; it is returned too.
func readLayer(ctx context.Context, r io.Reader, want string, b *archive.Budget, out *contents, d *dropped) ([]layerEntry, string, error) {
	sum := sha256.New()
	tar, err := archive.OpenTar(r, archive.TarOptions{Budget: b, Plain: sum})
	if err != nil {
		return nil, "", err
	}
	defer tar.Close()
	var entries []layerEntry
	buf := make([]byte, 256<<10)
	for {
		if err := ctx.Err(); err != nil {
			return nil, "", err
		}
		e, err := tar.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return nil, "", err
		}
		for name := range e.Xattrs {
			d.add("the attribute "+clip(name), e.Path)
		}
		// A whiteout counts whatever it is.
		if strings.HasPrefix(path.Base(e.Path), whiteout) {
			entries = append(entries, layerEntry{path: e.Path})
			continue
		}
		if e.Kind == archive.HardLink {
			entries = append(entries, layerEntry{path: e.Path, link: e.Target})
			continue
		}
		n := entryNode(e)
		if n == nil {
			d.add("the "+e.Kind.String(), e.Path)
			continue
		}
		if n.size > 0 {
			n.placed, n.block = true, out.reserve(n.size)
			if err := out.write(ctx, tar, n.block, n.size, buf); err != nil {
				return nil, "", err
			}
		}
		entries = append(entries, layerEntry{path: e.Path, node: n})
	}
	got := "sha256:" + hex.EncodeToString(sum.Sum(nil))
	if want != "" && got != want {
		return nil, "", badLayer("a layer unpacks to %s where the image says %s", got, want)
	}
	return entries, got, nil
}

// unpacked is the result of reading layers.
type unpacked struct {
	layers  [][]layerEntry
	diffIDs []string
	notes   []string
}

// readLayers reads all layers, some of them at the same time.
func readLayers(ctx context.Context, sources []layerSource, l archive.Limits, out *contents) (unpacked, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	u := unpacked{layers: make([][]layerEntry, len(sources)), diffIDs: make([]string, len(sources))}
	lost := make([]dropped, len(sources))
	budget := archive.NewBudget(l)
	slots := make(chan struct{}, layersAtOnce)
	var wg sync.WaitGroup
	for i, src := range sources {
		select {
		case slots <- struct{}{}:
		case <-ctx.Done():
		}
		if ctx.Err() != nil {
			break
		}
		wg.Go(func() {
			defer func() { <-slots }()
			err := func() error {
				r, err := src.open(ctx)
				if err != nil {
					return err
				}
				defer r.Close()
				u.layers[i], u.diffIDs[i], err = readLayer(ctx, r, src.info.DiffID, budget, out, &lost[i])
				return err
			}()
			if err != nil {
				cancel(err) // the first one is the cause, the others are its doing
			}
		})
	}
	wg.Wait()
	if ctx.Err() != nil {
		return unpacked{}, context.Cause(ctx)
	}
	for i := range lost {
		u.notes = append(u.notes, lost[i].notes()...)
	}
	return u, nil
}

// rootFile is a finished root filesystem.
type rootFile struct {
	path  string
	size  int64
	disk  int64 // what it occupies
	notes []string
	// diffIDs are the layers' uncompressed digests, as they were found.
	diffIDs []string
}

// assemble makes the root filesystem of the given layers, lowest first, and puts
// it where name says, which gets the digests of the layers. Nothing is seen of it
// before it is whole.
func (s *Store) assemble(ctx context.Context, sources []layerSource, l archive.Limits, name func(diffIDs []string) string, wrote func()) (_ rootFile, err error) {
	f, err := s.oci.temp("root-")
	if err != nil {
		return rootFile{}, err
	}
	defer func() {
		if err != nil {
			_ = os.Remove(f.Name())
		}
		_ = f.Close()
	}()
	out := &contents{f: f}
	out.next.Store(1) // the superblock is written last
	u, err := readLayers(ctx, sources, l, out)
	if err != nil {
		return rootFile{}, err
	}
	t := newTree()
	for _, layer := range u.layers {
		if err := t.merge(layer); err != nil {
			return rootFile{}, err
		}
	}
	notes, err := t.complete()
	if err != nil {
		return rootFile{}, err
	}
	wrote()
	if err := finish(t, out); err != nil {
		return rootFile{}, err
	}
	if err := ctx.Err(); err != nil {
		return rootFile{}, err
	}
	r := rootFile{notes: append(u.notes, notes...), diffIDs: u.diffIDs, path: name(u.diffIDs)}
	info, err := f.Stat()
	if err != nil {
		return rootFile{}, fmt.Errorf("stat image: %w", err)
	}
	r.size, r.disk = info.Size(), hostfile.Occupied(info)
	// The record vouches for the image after a power cut too.
	if err := hostfile.Settle(f, r.path); err != nil {
		return rootFile{}, fmt.Errorf("keep image: %w", err)
	}
	return r, nil
}

// finish writes what stands behind the contents, then the superblock, and frees
// what no file of the tree has any more.
func finish(t *tree, out *contents) error {
	l, err := t.layOut(out.next.Load())
	if err != nil {
		return err
	}
	if err := out.f.Truncate(l.end * blockSize); err != nil {
		return fmt.Errorf("write image: %w", err)
	}
	buf := bufio.NewWriterSize(io.NewOffsetWriter(out.f, l.first*blockSize), 1<<20)
	if err := l.write(buf); err != nil {
		return err
	}
	if err := buf.Flush(); err != nil {
		return fmt.Errorf("write inodes: %w", err)
	}
	if err := punch(out.f, l); err != nil {
		return err
	}
	if _, err := out.f.WriteAt(l.superblock(), 0); err != nil {
		return fmt.Errorf("write superblock: %w", err)
	}
	if err := out.f.Chmod(0o444); err != nil {
		return fmt.Errorf("chmod image: %w", err)
	}
	return nil
}

// punch gives back the blocks of files that an upper layer replaced or removed.
func punch(f *os.File, l *layout) error {
	type extent struct{ from, to int64 }
	var live []extent
	for _, n := range l.nodes {
		if n.placed && n.bytes > 0 {
			live = append(live, extent{n.block, n.block + blocks(n.bytes)})
		}
	}
	slices.SortFunc(live, func(a, b extent) int { return int(a.from - b.from) })
	at := int64(1)
	for _, e := range append(live, extent{l.first, l.first}) {
		if e.from > at {
			err := free(f, at*blockSize, (e.from-at)*blockSize)
			if errors.Is(err, errors.ErrUnsupported) {
				return nil // it only costs space
			}
			if err != nil {
				return fmt.Errorf("free space of image: %w", err)
			}
		}
		at = max(at, e.to)
	}
	return nil
}
