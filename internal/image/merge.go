package image

import (
	"fmt"
	"path"
	"strings"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/archive"
)

const (
	whiteout       = ".wh."
	whiteoutOpaque = ".wh..wh..opq"
	whiteoutMeta   = ".wh..wh."

	// maxTreeDepth bounds a merged tree: a path through symlinks goes deeper than
	// any path of a layer.
	maxTreeDepth = 1024
	// maxLinks bounds the symlinks on the way to one entry, as the kernel does.
	maxLinks = 40
	// maxSteps bounds the parts of all paths that a merge walks, those of symlinks
	// included.
	maxSteps = 200_000_000
)

// layerEntry is an entry of a layer, its content in the image already.
type layerEntry struct {
	path string
	// link is the path of what a hard link is another name of; node is nil then.
	link string
	node *node
}

// merge puts a layer over the tree. What a layer removes is of the layers below
// it, wherever in the layer that is said.
func (t *tree) merge(layer []layerEntry) error {
	for _, e := range layer {
		dir, base := path.Split(e.path)
		if !strings.HasPrefix(base, whiteout) {
			continue
		}
		if err := t.removeBelow(dir, base); err != nil {
			return err
		}
	}
	for _, e := range layer {
		if strings.HasPrefix(path.Base(e.path), whiteout) {
			continue
		}
		if err := t.put(e); err != nil {
			return err
		}
	}
	return nil
}

// removeBelow does what the whiteout called base in dir says.
func (t *tree) removeBelow(dir, base string) error {
	if base != whiteoutOpaque && strings.HasPrefix(base, whiteoutMeta) {
		return nil // what one filesystem once kept for itself
	}
	name := strings.TrimPrefix(base, whiteout)
	if name == "" || name == "." || name == ".." {
		return badLayer("the whiteout %q names nothing", clip(dir+base))
	}
	n, err := t.find(dir, false)
	if err != nil {
		return err
	}
	switch {
	case n == nil || n.children == nil:
	case base == whiteoutOpaque:
		clear(n.children)
	default:
		delete(n.children, name)
	}
	return nil
}

// put adds one entry. A directory over a directory keeps what is in it; anything
// else replaces what had the name.
func (t *tree) put(e layerEntry) error {
	if e.path == "." {
		if e.node != nil && e.node.children != nil {
			t.root.become(e.node)
		}
		return nil
	}
	dir, base := path.Split(e.path)
	parent, err := t.find(dir, true)
	if err != nil {
		return err
	}
	n := e.node
	if n == nil {
		if n, err = t.linked(e); err != nil {
			return err
		}
	}
	if old := parent.children[base]; old != nil && old.children != nil && n.children != nil {
		old.become(n)
		return nil
	}
	parent.children[base] = n
	return nil
}

// linked finds what a hard link is another name of. A symlink at the end is
// linked itself.
func (t *tree) linked(e layerEntry) (*node, error) {
	dir, base := path.Split(e.link)
	parent, err := t.find(dir, false)
	if err != nil {
		return nil, err
	}
	if parent == nil || parent.children[base] == nil {
		return nil, badLayer("the hard link %q is of %q, which is not there", clip(e.path), clip(e.link))
	}
	n := parent.children[base]
	if n.children != nil {
		return nil, badLayer("the hard link %q is of %q, which is a directory", clip(e.path), clip(e.link))
	}
	return n, nil
}

// find returns the directory called name, following symlinks as a process does
// whose root directory is the tree's: none leads out of it. What is missing is
// made, or with create unset found to be nil.
func (t *tree) find(name string, create bool) (*node, error) {
	above := []*node{t.root} // the way from the root to where we are
	todo := strings.Split(strings.Trim(name, "/"), "/")
	links := 0
	for len(todo) > 0 {
		part := todo[0]
		todo = todo[1:]
		if t.steps++; t.steps > maxSteps {
			return nil, api.Errorf(api.CodeTooLarge, "image: its paths have more than %d parts", maxSteps)
		}
		here := above[len(above)-1]
		switch part {
		case "", ".":
			continue
		case "..":
			above = above[:max(1, len(above)-1)]
			continue
		}
		next := here.children[part]
		switch {
		case next == nil && !create:
			return nil, nil
		case next == nil:
			if len(part) > maxNameLen {
				return nil, badLayer("%q leads through a name of %d bytes", clip(name), len(part))
			}
			next = newDir()
			here.children[part] = next
		case next.target != "":
			if links++; links > maxLinks {
				return nil, badLayer("%q goes through more than %d symlinks", clip(name), maxLinks)
			}
			if strings.HasPrefix(next.target, "/") {
				above = above[:1]
			}
			todo = append(strings.Split(next.target, "/"), todo...)
			t.steps += len(todo)
			continue
		case next.children == nil && !create:
			return nil, nil
		case next.children == nil:
			return nil, badLayer("%q is below something that is no directory", clip(name))
		}
		if len(above) == maxTreeDepth {
			return nil, api.Errorf(api.CodeTooLarge, "image: %q is more than %d levels deep", clip(name), maxTreeDepth)
		}
		above = append(above, next)
	}
	return above[len(above)-1], nil
}

// lookup finds what is called name and follows no symlink at its end; nil is
// nothing.
func (t *tree) lookup(name string) *node {
	dir, base := path.Split(name)
	parent, err := t.find(dir, false)
	if err != nil || parent == nil {
		return nil
	}
	return parent.children[base]
}

// badLayer is the error about a layer that means nothing.
func badLayer(format string, args ...any) *api.Error {
	return api.Invalid("image", "image: "+format, args...)
}

// entryNode makes the inode of an archive's entry; nil for what an image does
// not hold.
func entryNode(e archive.Entry) *node {
	n := &node{uid: e.UID, gid: e.GID, sec: e.ModTime.Unix(), nsec: uint32(e.ModTime.Nanosecond())}
	if e.ModTime.IsZero() {
		n.sec, n.nsec = 0, 0
	}
	mode := uint16(e.Mode & 0o7777)
	switch e.Kind {
	case archive.Dir:
		n.mode, n.children = modeDir|mode, map[string]*node{}
	case archive.File:
		n.mode, n.size = modeFile|mode, e.Size
	case archive.Symlink:
		n.mode, n.target = modeSymlink|0o777, e.Target
	default:
		return nil
	}
	return n
}

// complete adds what programs expect of every root filesystem and an image may
// leave to who runs it: where something will be mounted, who root is, and what
// the machine is called. What the image has stays as it is, except for a file at the path of
// a directory that every sandbox has of its own: that is left out, and reported.
func (t *tree) complete() (notes []string, err error) {
	for _, name := range []string{".cloche", "dev", "proc", "sys", "tmp"} {
		n := t.root.children[name]
		if n == nil || n.children != nil {
			continue
		}
		if name == "tmp" {
			// It may be a symlink, as long as it leads to a directory.
			if dir, err := t.find(name, false); err == nil && dir != nil && dir.children != nil {
				continue
			}
		}
		delete(t.root.children, name)
		notes = append(notes, "/"+name+", which is no directory, is left out: every sandbox has one of its own there")
	}
	etc := "etc"
	passwd := t.lookup("etc/passwd") == nil
	for _, d := range []struct {
		name string
		perm uint16
	}{{"dev", 0o755}, {"proc", 0o555}, {"sys", 0o555}, {"tmp", 0o1777}, {"run", 0o755}, {etc, 0o755}, {".cloche", 0o755}, {"root", 0o700}} {
		if t.lookup(d.name) == nil {
			if err := t.dir(d.name, d.perm); err != nil {
				return nil, fmt.Errorf("complete image: %w", err)
			}
		}
	}
	dir, err := t.find(etc, false)
	if err != nil || dir == nil {
		return notes, nil // an /etc that leads nowhere is the image's own affair
	}
	for name, content := range etcOfImages() {
		old := dir.children[name]
		// Builders leave empty files where the runtime puts its own.
		if old != nil && (old.children != nil || old.target != "" || old.size > 0 || name == "passwd" || name == "group") {
			continue
		}
		if name == "group" && !passwd {
			continue
		}
		fresh := &tree{root: dir}
		delete(dir.children, name)
		if err := fresh.text(name, 0o644, []byte(content)); err != nil {
			return nil, fmt.Errorf("complete image: %w", err)
		}
	}
	return notes, nil
}

// etcOfImages are the files of /etc that an image is given where it has none.
func etcOfImages() map[string]string {
	made := etcMade("/bin/sh")
	return map[string]string{
		"passwd":      "root:x:0:0:root:/root:/bin/sh\nnobody:x:65534:65534:nobody:/nonexistent:/sbin/nologin\n",
		"group":       "root:x:0:\nnogroup:x:65534:\n",
		"hosts":       made["hosts"],
		"hostname":    made["hostname"],
		"resolv.conf": made["resolv.conf"],
	}
}
