package build

import (
	"archive/tar"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"path"
	"slices"
	"strings"
	"time"

	erofs "github.com/erofs/go-erofs"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/agent"
	"github.com/cloche-dev/cloche/internal/archive"
	"github.com/cloche-dev/cloche/internal/archive/erofstar"
	"github.com/cloche-dev/cloche/internal/image"
)

// tmp is a filesystem of its own in a sandbox, and part of the layers.
const tmp = "tmp"

// whiteout is the prefix of the name that says that a file was removed.
const whiteout = ".wh."

// The types of files in a mode of stat(2), on Linux, where the sandboxes are.
const (
	typeMask    = 0o170000
	typeDir     = 0o040000
	typeFile    = 0o100000
	typeSymlink = 0o120000
)

// entry is what tells a file from itself after a change. Programs inside can set all but the last three.
type entry struct {
	mode, uid, gid uint32
	size, mtime    int64
	ctime          int64
	ino, dev       uint64 // not in an image
}

func (e entry) isDir() bool { return e.mode&typeMask == typeDir }

// same reports whether a file is as it was. The times of a directory are those of what is in it.
func (e entry) same(old entry) bool {
	if e.mode != old.mode || e.uid != old.uid || e.gid != old.gid {
		return false
	}
	return e.isDir() || e.size == old.size && e.mtime == old.mtime && e.ctime == old.ctime && e.ino == old.ino && e.dev == old.dev
}

// setID are the bits that some engines leave out when they unpack an image.
const setID = 0o6000

// untouched reports whether a file is as it is in the image, and was not changed since the sandbox was
// created. Some engines mount the image, where the time of change is the time of the content, and others unpack
// it before.
func (e entry) untouched(in entry, created int64) bool {
	if e.mode&^setID != in.mode&^setID || e.uid != in.uid || e.gid != in.gid {
		return false
	}
	if e.ctime >= created && e.ctime != in.ctime {
		return e.isDir() && e.mode == in.mode
	}
	return e.isDir() || e.size == in.size && e.mtime == in.mtime
}

// known is what the filesystem of a stage has, by path.
type known map[string]entry

// knownOf is what an image has. The times of change are those of the content.
func knownOf(files *image.Tree) (known, error) {
	k := known{}
	err := files.Walk(".", func(name string, info fs.FileInfo) error {
		st, ok := info.Sys().(*erofs.Stat)
		if !ok || name == "." || under(name, tmp) {
			return nil
		}
		own, _ := files.Lstat(name)
		e := entry{mode: own.Mode, uid: st.UID, gid: st.GID, size: info.Size(), mtime: int64(st.Mtime)*1e9 + int64(st.MtimeNs)}
		e.ctime = e.mtime
		switch info.Mode().Type() {
		case fs.ModeDir:
			e.mode |= typeDir
		case fs.ModeSymlink:
			e.mode |= typeSymlink
		default:
			e.mode |= typeFile
		}
		k[name] = e
		return nil
	})
	return k, err
}

func under(name, dir string) bool { return name == dir || strings.HasPrefix(name, dir+"/") }

// listing is a filesystem as the agent lists it.
type listing struct {
	files known
	// hidden are mount points: what the image has there is not seen.
	hidden []string
}

const (
	// maxListed bounds the files of a stage.
	maxListed = 4_000_000
	// maxLayer bounds the bytes of a layer's files.
	maxLayer = 64 << 30
)

// list lists a filesystem. below is put before its names.
func list(ctx context.Context, sandbox Sandbox, top, below string) (listing, error) {
	l := listing{files: known{}}
	err := sandbox.Tree(ctx, top, func(t agent.TreeEntry) error {
		name := string(t.Path)
		if !fs.ValidPath(name) || name == "." {
			return api.Errorf(api.CodeSandboxLost, "the sandbox of the build lists a file %.100q", name)
		}
		if len(l.files) >= maxListed {
			return api.Errorf(api.CodeTooLarge, "the build has more than %d files", maxListed)
		}
		name = path.Join(below, name)
		if t.Mount {
			l.hidden = append(l.hidden, name)
			return nil
		}
		l.files[name] = entry{
			mode: t.Mode, uid: t.UID, gid: t.GID, size: t.Size, mtime: t.Mtime, ctime: t.Ctime, ino: t.Ino, dev: t.Dev,
		}
		return nil
	})
	return l, err
}

// listAll lists the root and /tmp.
func listAll(ctx context.Context, sandbox Sandbox) (listing, error) {
	now, err := list(ctx, sandbox, "/", "")
	if err != nil {
		return listing{}, err
	}
	inTmp, err := list(ctx, sandbox, "/"+tmp, tmp)
	maps.Copy(now.files, inTmp.files)
	return now, err
}

// own are files that a sandbox has of its own, whatever the image has.
func own(name string) bool {
	switch name {
	case "etc/hosts", "etc/hostname", "etc/resolv.conf", ".dockerenv", "run/.containerenv":
		return true
	}
	return strings.HasPrefix(name, ".cloche") // the agent's
}

// capture keeps what the last step changed as a layer.
func (s *stage) capture(ctx context.Context) (l image.Layer, err error) {
	l, s.known, err = capture(ctx, s.work.b.Images, s.sandbox, s.known, entry.same)
	for _, note := range l.Notes {
		s.warn("%s", note)
	}
	return l, err
}

// capture keeps what differs from what was known of a sandbox as a layer, and returns what is known now.
func capture(ctx context.Context, images *image.Store, sandbox Sandbox, before known, same func(now, before entry) bool) (image.Layer, known, error) {
	now, err := listAll(ctx, sandbox)
	if err != nil {
		return image.Layer{}, nil, err
	}
	changed, removed := before.diff(now, same)
	if len(changed)+len(removed) == 0 {
		return image.Layer{}, now.files, nil
	}
	p := &layerPacker{}
	l, err := images.PutLayer(ctx, func(w io.Writer) error { return p.pack(ctx, sandbox, w, changed, removed) })
	l.Notes = p.notes
	return l, now.files, err
}

// Commit makes an image called name of a sandbox that was created from the image base, not before created.
// Programs that run meanwhile change files while they are read.
func Commit(ctx context.Context, images *image.Store, sandbox Sandbox, name, base string, created time.Time, config api.ImageConfig) (api.Image, error) {
	files, err := images.OpenFiles(ctx, base)
	if err != nil {
		return api.Image{}, err
	}
	defer files.Close()
	before, err := knownOf(files)
	if err != nil {
		return api.Image{}, err
	}
	l, _, err := capture(ctx, images, sandbox, before, func(now, in entry) bool { return now.untouched(in, created.UnixNano()) })
	if err != nil {
		return api.Image{}, err
	}
	return images.Stack(ctx, name, image.StackOptions{Base: base, Layers: []image.Layer{l}, Config: config})
}

// diff returns the files that are new or not as they were, and those that are not there any more, without
// what is below a removed directory. Both are sorted.
func (k known) diff(now listing, isSame func(now, before entry) bool) (changed, removed []string) {
	inodes := map[[2]uint64]bool{} // of changed files
	same := []string{}
	for name, e := range now.files {
		switch old, ok := k[name]; {
		case own(name):
		case ok && isSame(e, old):
			same = append(same, name)
		default:
			changed = append(changed, name)
			if !e.isDir() {
				inodes[[2]uint64{e.dev, e.ino}] = true
			}
		}
	}
	// A new hard link does not change the times of the file everywhere.
	for _, name := range same {
		if e := now.files[name]; !e.isDir() && inodes[[2]uint64{e.dev, e.ino}] {
			changed = append(changed, name)
		}
	}
	hidden := map[string]bool{}
	for _, name := range now.hidden {
		hidden[name] = true
	}
	for name := range k {
		if _, ok := now.files[name]; ok || own(name) || hidden[name] || name == tmp {
			continue
		}
		// Only below a directory that is still there is a removal to be told of.
		dir := path.Dir(name)
		if above, ok := now.files[dir]; dir == "." || dir == tmp || ok && above.isDir() && k[dir].isDir() {
			removed = append(removed, name)
		}
	}
	slices.Sort(changed)
	slices.Sort(removed)
	return changed, removed
}

// layerPacker writes a layer.
type layerPacker struct{ notes []string }

// maxNotes bounds what is told of a layer.
const maxNotes = 20

func (p *layerPacker) note(format string, args ...any) {
	if len(p.notes) < maxNotes {
		p.notes = append(p.notes, fmt.Sprintf(format, args...))
	}
}

// pack writes the changed files, and a whiteout for each removed one.
func (p *layerPacker) pack(ctx context.Context, sandbox Sandbox, w io.Writer, changed, removed []string) error {
	out := tar.NewWriter(w)
	for _, name := range removed {
		dir, base := path.Split(name)
		h := &tar.Header{Typeflag: tar.TypeReg, Name: dir + whiteout + base, Mode: 0o600, Format: tar.FormatPAX}
		if err := out.WriteHeader(h); err != nil {
			return fmt.Errorf("write layer: %w", err)
		}
	}
	root, inTmp := changed, []string(nil)
	if i, _ := slices.BinarySearch(changed, tmp+"/"); i < len(changed) && strings.HasPrefix(changed[i], tmp+"/") {
		end := i
		for end < len(changed) && strings.HasPrefix(changed[end], tmp+"/") {
			inTmp = append(inTmp, strings.TrimPrefix(changed[end], tmp+"/"))
			end++
		}
		root = append(slices.Clone(changed[:i]), changed[end:]...)
	}
	if err := p.from(ctx, sandbox, out, "/", "", root); err != nil {
		return err
	}
	if err := p.from(ctx, sandbox, out, "/"+tmp, tmp, inTmp); err != nil {
		return err
	}
	if err := out.Close(); err != nil {
		return fmt.Errorf("write layer: %w", err)
	}
	return nil
}

// from copies entries of one filesystem, some at a time: all names of a call are in one request.
func (p *layerPacker) from(ctx context.Context, sandbox Sandbox, out *tar.Writer, top, below string, names []string) error {
	for len(names) > 0 {
		n, size := 0, 0
		for n < len(names) && size < agent.MaxPackNames/2 {
			size += len(names[n])
			n++
		}
		if err := p.some(ctx, sandbox, out, top, below, names[:n]); err != nil {
			return err
		}
		names = names[n:]
	}
	return nil
}

func (p *layerPacker) some(ctx context.Context, sandbox Sandbox, out *tar.Writer, top, below string, names []string) error {
	r, w := io.Pipe()
	type result struct {
		report api.TarReport
		err    error
	}
	packed := make(chan result, 1)
	go func() {
		report, err := sandbox.PackOnly(ctx, top, names, w)
		w.CloseWithError(err)
		packed <- result{report, err}
	}()
	err := p.copy(r, out, below, names)
	_ = r.CloseWithError(errors.Join(err, io.ErrClosedPipe))
	res := <-packed
	if err != nil {
		return err
	}
	for _, skip := range res.report.Skipped {
		p.note("/%s: %s", path.Join(below, skip.Path), skip.Reason)
	}
	return res.err
}

// copy copies the entries of a tar that a sandbox wrote. Only what was asked for is taken.
func (p *layerPacker) copy(r io.Reader, out *tar.Writer, below string, names []string) error {
	wanted := make(map[string]bool, len(names))
	for _, name := range names {
		wanted[name] = true
	}
	in, err := archive.OpenTar(r, archive.TarOptions{Limits: archive.Limits{Bytes: maxLayer, Entries: maxListed}})
	if err != nil {
		return err
	}
	defer in.Close()
	for {
		e, err := in.Next()
		if errors.Is(err, io.EOF) {
			_, err := io.Copy(io.Discard, r) // what follows the end of the archive
			return err
		}
		if err != nil {
			return err
		}
		if !wanted[e.Path] {
			return api.Errorf(api.CodeSandboxLost, "the sandbox of the build packs a file %.100q that was not asked for", e.Path)
		}
		delete(wanted, e.Path)
		if strings.HasPrefix(path.Base(e.Path), whiteout) {
			p.note("/%s: a layer has no files whose names begin with %s", path.Join(below, e.Path), whiteout)
			continue
		}
		h := &tar.Header{
			Name: path.Join(below, e.Path), Mode: int64(e.Mode & 0o7777), Uid: int(e.UID), Gid: int(e.GID), ModTime: e.ModTime, Format: tar.FormatPAX,
		}
		switch e.Kind {
		case archive.Dir:
			h.Typeflag, h.Name = tar.TypeDir, h.Name+"/"
		case archive.Symlink:
			h.Typeflag, h.Linkname = tar.TypeSymlink, e.Target
		case archive.HardLink:
			h.Typeflag, h.Linkname = tar.TypeLink, path.Join(below, e.Target)
		case archive.File:
			h.Typeflag, h.Size = tar.TypeReg, e.Size
		default:
			continue
		}
		if err := out.WriteHeader(h); err != nil {
			return fmt.Errorf("write layer: %w", err)
		}
		if e.Kind != archive.File {
			continue
		}
		if _, err := io.Copy(out, in); err != nil {
			return err
		}
	}
}

// restoreTmp gives the sandbox the files that its image has in /tmp, which a sandbox does not show.
func (s *stage) restoreTmp(ctx context.Context, files *image.Tree) error {
	if st, ok := files.Lstat(tmp); !ok || st.Type != api.TypeDir || len(files.Names(tmp)) == 0 {
		return nil
	}
	return s.send(ctx, "/"+tmp, func(w *tar.Writer) error {
		return files.Pack(ctx, &erofstar.Packer{Tar: w}, tmp, ".", nil)
	})
}
