//go:build linux || darwin

package image

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/cloche-dev/cloche/api"
)

// hostView is the machine as the host image shows it.
type hostView struct {
	// root is "/" but in tests.
	root string
	// home is Cloche's own directory, which is masked where it would be seen.
	home string
}

func thisHost(home string) hostView { return hostView{root: "/", home: home} }

func (h hostView) at(name string) string { return filepath.Join(h.root, name) }

// build lays out the image, with the directories extra besides the usual ones.
func (h hostView) build(ctx context.Context, extra []string) (*tree, record, error) {
	c := &copier{ctx: ctx, host: h, tree: newTree()}
	r := Rootfs{
		Ref:         api.DefaultImage,
		User:        "root",
		MissingHint: HostHint,
		// PEP 668's marker protects the machine's packages, which are read-only here: pip
		// installs into the home.
		Env: map[string]string{"LANG": "C.UTF-8", "PIP_BREAK_SYSTEM_PACKAGES": "1", "PIP_ROOT_USER_ACTION": "ignore"},
	}
	if err := c.toolDirs(&r); err != nil {
		return nil, record{}, err
	}
	if err := c.etc(); err != nil {
		return nil, record{}, err
	}
	if err := c.emptyDirs(extra); err != nil {
		return nil, record{}, err
	}
	r.Env["PATH"] = c.path()
	if err := c.python(&r); err != nil {
		return nil, record{}, err
	}
	if err := c.masks(&r); err != nil {
		return nil, record{}, err
	}
	return c.tree, record{Rootfs: r, Sources: c.sources}, nil
}

// toolDirs shows what holds the programs: symlinks as they are, directories as
// mounts.
func (c *copier) toolDirs(r *Rootfs) error {
	for _, name := range toolDirs() {
		info, err := c.look(name)
		if err != nil {
			return err
		}
		if info == nil {
			continue
		}
		switch {
		case info.Mode()&fs.ModeSymlink != 0:
			if err := c.link(name); err != nil {
				return err
			}
		case info.IsDir():
			if err := c.tree.dir(name, 0o755); err != nil {
				return err
			}
			r.Mounts = append(r.Mounts, Mount{Source: c.host.at(name), Target: "/" + name})
		}
	}
	if len(r.Mounts) == 0 {
		return errors.New("this machine has no /usr that could be shown")
	}
	return nil
}

func (c *copier) etc() error {
	shell := "/bin/sh"
	if info, err := c.look("usr/bin/bash"); err != nil {
		return err
	} else if info != nil {
		shell = "/bin/bash"
	}
	for name, content := range etcMade(shell) {
		if err := c.tree.text("etc/"+name, 0o644, []byte(content)); err != nil {
			return err
		}
	}
	if err := c.tree.symlink("etc/mtab", "/proc/mounts"); err != nil {
		return err
	}
	// A name that comes or goes changes the directory.
	if _, err := c.look("etc"); err != nil {
		return err
	}
	entries, err := os.ReadDir(c.host.at("etc"))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("read /etc: %w", err)
	}
	allowed := etcAllowed()
	for _, e := range entries {
		matches := func(pattern string) bool {
			ok, _ := path.Match(pattern, e.Name())
			return ok
		}
		if slices.ContainsFunc(allowed, matches) {
			if err := c.copy("etc/"+e.Name(), 0); err != nil {
				return err
			}
		}
	}
	for _, part := range etcParts() {
		if err := c.copy("etc/"+part, 0); err != nil {
			return err
		}
	}
	return nil
}

func (c *copier) emptyDirs(extra []string) error {
	dirs := emptyDirs()
	for _, name := range slices.Sorted(maps.Keys(dirs)) {
		if err := c.tree.dir(name, dirs[name]); err != nil {
			return err
		}
	}
	if err := c.tree.ownedDir("home/"+userName, 0o755, userID, userID); err != nil {
		return err
	}
	for name, target := range map[string]string{"var/run": "/run", "var/lock": "/run/lock", overDir + "/sudo": sudoProgram} {
		if err := c.tree.symlink(name, target); err != nil {
			return err
		}
	}
	for _, name := range extra {
		if c.tree.has(name) {
			continue
		}
		if err := c.tree.dir(name, 0o755); err != nil {
			return api.Invalid("mounts", "mount target %q cannot be a directory of image \"host\"", clip(name)).
				WithHint("choose a target below /mnt, /srv or /opt").WithCause(err)
		}
	}
	return nil
}

// path is the PATH of processes: the usual one and the toolchains that stand
// beside it.
func (c *copier) path() string {
	// The agent knows the home of each process's user.
	dirs := []string{"~/.local/bin", "/" + overDir, "/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin"}
	for _, name := range extraPath() {
		if info, err := c.look(name); err == nil && info != nil {
			dirs = append(dirs, "/"+name)
		}
	}
	return strings.Join(dirs, ":")
}

// python adds the name python, last in the PATH, where the machine has python3 alone: many
// programs of images for Python call it so.
func (c *copier) python(r *Rootfs) error {
	target := ""
	for _, dir := range []string{"usr/local/bin", "usr/bin"} {
		for _, name := range []string{"python", "python3"} {
			info, err := c.look(dir + "/" + name)
			switch {
			case err != nil:
				return err
			case info == nil:
			case name == "python":
				return nil
			case target == "":
				target = "/" + dir + "/" + name
			}
		}
	}
	if target == "" {
		return nil
	}
	r.Env["PATH"] += ":/" + namesDir
	return c.tree.symlink(namesDir+"/python", target)
}

// masks finds the directories below the mounts that are not tools: local
// settings, Cloche's own home, and homes of people.
func (c *copier) masks(r *Rootfs) error {
	found := map[string]bool{}
	consider := func(name string) error {
		name = strings.Trim(path.Clean("/"+name), "/")
		if !slices.ContainsFunc(r.Mounts, func(m Mount) bool { return strings.HasPrefix("/"+name, m.Target+"/") }) {
			return nil
		}
		info, err := c.look(name)
		if err == nil && info != nil && info.IsDir() {
			found["/"+name] = true
		}
		return err
	}
	for _, name := range maskedDirs() {
		if err := consider(name); err != nil {
			return err
		}
	}
	if rel, err := filepath.Rel(c.host.root, c.host.home); err == nil && filepath.IsLocal(rel) {
		if err := consider(rel); err != nil {
			return err
		}
	}
	homes, err := c.homes()
	if err != nil {
		return err
	}
	for name, uid := range homes {
		// A service account may call /usr/bin its home, but does not own it.
		if s, err := look(c.host.at(name)); err != nil || s.Missing || s.UID != uid {
			continue
		}
		if err := consider(name); err != nil {
			return err
		}
	}
	// A mask below another one has nowhere to be mounted.
	for _, name := range slices.Sorted(maps.Keys(found)) {
		if !slices.ContainsFunc(r.Masks, func(m string) bool { return strings.HasPrefix(name, m+"/") }) {
			r.Masks = append(r.Masks, name)
		}
	}
	return nil
}

// homes lists the home directories of the people in this machine's passwd, each
// with its user.
func (c *copier) homes() (map[string]uint32, error) {
	if _, err := c.look("etc/passwd"); err != nil {
		return nil, err
	}
	data, err := readSmall(c.host.at("etc/passwd"))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read passwd: %w", err)
	}
	homes := map[string]uint32{}
	for line := range strings.Lines(string(data)) {
		fields := strings.Split(strings.TrimSpace(line), ":")
		if len(fields) < 7 {
			continue
		}
		if uid, err := strconv.ParseUint(fields[2], 10, 32); err == nil && uid >= 1000 && uid != 65534 {
			homes[fields[5]] = uint32(uid)
		}
	}
	return homes, nil
}

// checkMountPoints refuses mount points that the image cannot have and returns
// those that have to be added to it.
func (h hostView) checkMountPoints(need Need) ([]string, error) {
	usual := emptyDirs()
	var extra []string
	for _, target := range need.MountPoints {
		if err := cleanTarget(target); err != nil {
			return nil, err
		}
		name := target[1:]
		top, _, _ := strings.Cut(name, "/")
		if slices.Contains(toolDirs(), top) {
			info, err := os.Lstat(h.at(name))
			resolved, rerr := filepath.EvalSymlinks(h.at(name))
			if err != nil || rerr != nil || !info.IsDir() || resolved != h.at(name) {
				return nil, api.Invalid("mounts", "mount target %q is inside /%s, which image \"host\" shows read-only, and is no directory there", clip(target), top).
					WithHint("choose a target outside /%s, such as /mnt/%s", top, path.Base(name))
			}
			continue
		}
		if _, ok := usual[name]; !ok && need.ReadOnlyRoot && name != "" {
			extra = append(extra, name)
		}
	}
	slices.Sort(extra)
	return slices.Compact(extra), nil
}
