package engine

import (
	"archive/tar"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"slices"
	"strings"

	erofs "github.com/erofs/go-erofs"

	"github.com/cloche-dev/cloche/api"
)

// maxImageLinks is the maximum number of symbolic links of an image on one path.
const maxImageLinks = 40

// CheckMountPoints refuses a plan in which a symbolic link of the root's image leads a mount point
// into another mount. The engine would otherwise create something in a directory of the host, as
// root. Each engine calls it before it creates anything. own are further paths at which the engine
// creates or mounts something.
func (p Plan) CheckMountPoints(own ...string) error {
	f, err := os.Open(p.Root.Image)
	if errors.Is(err, fs.ErrNotExist) {
		return nil // the engine reports it
	}
	if err != nil {
		return api.Errorf(api.CodeInternal, "create sandbox: the image cannot be opened").WithCause(err)
	}
	defer f.Close()
	image, err := erofs.Open(f)
	if err != nil {
		return api.Errorf(api.CodeInternal, "create sandbox: the image cannot be read").WithCause(err)
	}
	root := layeredRoot{image: image}
	if err := root.readUpper(p.Root.Upper); err != nil {
		return api.Errorf(api.CodeInternal, "create sandbox: the layer of the snapshot cannot be read").WithCause(err)
	}
	var hosts []mountPoint
	for _, m := range p.Mounts {
		hosts = append(hosts, mountPoint{target: m.Target})
	}
	for _, v := range p.Volumes {
		hosts = append(hosts, mountPoint{target: v.Target})
	}
	all := slices.Clone(hosts)
	for _, t := range p.Tmpfs {
		all = append(all, mountPoint{target: t.Target})
	}
	for _, target := range append([]string{p.Agent.Target, "/proc", "/sys", "/dev"}, own...) {
		all = append(all, mountPoint{target: target})
	}
	for i := range all {
		if err := root.follow(&all[i]); err != nil {
			return err
		}
	}
	for i, m := range all {
		for j, h := range all[:len(hosts)] {
			if i == j || m.link == "" || under(m.target, h.target) || !under(m.leads, h.leads) {
				continue
			}
			return api.Errorf(api.CodeInvalid, "create sandbox: the symbolic link %.200q of the image leads %.200q into what is mounted at %.200q", m.link, m.target, h.target).
				WithHint("mount at another path, or use an image without that link")
		}
	}
	return nil
}

// mountPoint is a path, where it leads in the image, and the last link on that path.
type mountPoint struct{ target, leads, link string }

// under reports whether a clean path is dir or below it.
func under(name, dir string) bool {
	name, dir = path.Clean("/"+name), path.Clean("/"+dir)
	return name == dir || dir == "/" || strings.HasPrefix(name, dir+"/")
}

// layeredRoot is an image and the links of the layer that the root starts with.
type layeredRoot struct {
	image fs.FS
	// upper maps each name of the layer to the target of a link, or to an empty string.
	upper map[string]string
	// gone are the names that the layer removes.
	gone map[string]bool
}

// maxLayerNames limits the names and targets that are kept of a layer, in bytes. A sandbox controls
// the content of a layer.
const maxLayerNames = 64 << 20

// readUpper reads the names in the tar of a layer.
func (r *layeredRoot) readUpper(name string) error {
	if name == "" {
		return nil
	}
	f, err := os.Open(name)
	if err != nil {
		return fmt.Errorf("open layer: %w", err)
	}
	defer f.Close()
	r.upper, r.gone = map[string]string{}, map[string]bool{}
	for t, size := tar.NewReader(f), 0; ; {
		h, err := t.Next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("read layer: %w", err)
		}
		if size += len(h.Name) + len(h.Linkname); size > maxLayerNames {
			return errors.New("read layer: it has too many names")
		}
		at := path.Clean("/" + h.Name)
		switch h.Typeflag {
		case tar.TypeSymlink:
			r.upper[at] = h.Linkname
		case tar.TypeDir:
			r.upper[at] = ""
		case tar.TypeChar:
			r.gone[at] = true
		}
	}
}

// link returns the target of the symbolic link at a clean path, or an empty string if no link
// is there.
func (r *layeredRoot) link(name string) (string, error) {
	if to, ok := r.upper[name]; ok {
		return to, nil
	}
	if r.gone[name] {
		return "", nil
	}
	to, err := fs.ReadLink(r.image, strings.TrimPrefix(name, "/"))
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, fs.ErrInvalid) {
		return "", nil
	}
	if err != nil {
		return "", api.Errorf(api.CodeInternal, "create sandbox: the image cannot be read at %.200q", name).WithCause(err)
	}
	return to, nil
}

// follow finds where a mount point leads, resolved from the root as the kernel does.
func (r *layeredRoot) follow(m *mountPoint) error {
	at, todo, links := "/", strings.Split(path.Clean("/"+m.target), "/"), 0
	for len(todo) > 0 {
		part := todo[0]
		todo = todo[1:]
		if part == "" || part == "." {
			continue
		}
		next := path.Join(at, part) // ".." is the parent; at the root it is the root
		if part == ".." {
			at = next
			continue
		}
		to, err := r.link(next)
		if err != nil {
			return err
		}
		if to == "" {
			at = next
			continue
		}
		if links++; links > maxImageLinks {
			return api.Errorf(api.CodeInvalid, "create sandbox: the symbolic link %.200q of the image leads %.200q in a circle", next, m.target).
				WithHint("mount at another path, or use an image without that link")
		}
		m.link = next
		if strings.HasPrefix(to, "/") {
			at = "/"
		}
		todo = append(strings.Split(to, "/"), todo...)
	}
	m.leads = at
	return nil
}
