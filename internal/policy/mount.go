package policy

import (
	"strconv"
	"strings"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/policy/rules"
)

// Limits of what a request puts into the sandbox.
const (
	maxMounts    = 64
	maxFiles     = 1024
	maxFileBytes = 32 << 20
)

// reservedTargets returns the paths inside that Cloche itself mounts. A request cannot put anything
// there or below.
func reservedTargets() []string {
	return []string{"/proc", "/sys", "/dev", "/.cloche", "/.cloche-trust"}
}

// writableInside returns the paths that stay writable under a read-only root.
func writableInside() []string { return []string{"/tmp", "/dev/shm"} }

// cleanTarget is cleanAbs for a path at which something is put into the sandbox.
func cleanTarget(field, p string) (string, *api.Error) {
	p, err := rules.CleanAbs(field, p)
	if err != nil {
		return "", err
	}
	if p == "/" {
		return "", api.Invalid(field, "%s is the root of the sandbox", field).
			WithHint("choose a directory below it, such as %q", api.DefaultWorkspacePath)
	}
	for _, r := range reservedTargets() {
		if rules.Within(p, r) {
			return "", api.Invalid(field, "%s %s lies in %s, which the sandbox itself provides", field, rules.Quote(p), r).
				WithHint("choose a path outside %s", strings.Join(reservedTargets(), ", "))
		}
	}
	return p, nil
}

func checkWorkspace(d *decision) *api.Error {
	w := d.spec.Workspace
	if w.Name != "" && w.Dir != "" {
		return api.Invalid("workspace", "workspace has both name %s and dir %s", rules.Quote(w.Name), rules.Quote(w.Dir)).
			WithHint("name a workspace that is kept by the daemon, or a directory of the host, not both")
	}
	if w.Name != "" && !api.ValidName(w.Name) {
		return api.Invalid("workspace.name", "workspace name %s is not valid", rules.Quote(w.Name)).
			WithHint("%s; a directory of the host goes in workspace.dir", rules.NameHint())
	}
	if w.Path == "" {
		w.Path = api.DefaultWorkspacePath
	}
	var err *api.Error
	if w.Path, err = cleanTarget("workspace.path", w.Path); err != nil {
		return err
	}
	return checkQuotaMode(w)
}

func checkCwd(d *decision) *api.Error {
	if w := d.spec.Workspace; d.spec.Cwd == "" {
		d.spec.Cwd = w.Path
		d.cwdOpen = w.Name == "" && w.Dir == "" && w.Path == api.DefaultWorkspacePath
		return nil
	}
	var err *api.Error
	d.spec.Cwd, err = rules.CleanAbs("cwd", d.spec.Cwd)
	return err
}

// checkMounts judges the targets. checkHostDirs judges the sources.
func checkMounts(d *decision) *api.Error {
	if n := len(d.spec.Mounts); n > maxMounts {
		return rules.TooLarge("mounts", "there are %d mounts", n).WithHint("at most %d", maxMounts)
	}
	taken := map[string]string{d.spec.Workspace.Path: "workspace.path"}
	for i := range d.spec.Mounts {
		m, field := &d.spec.Mounts[i], rules.ElementAt("mounts", i)+".target"
		var err *api.Error
		if m.Target, err = cleanTarget(field, m.Target); err != nil {
			return err
		}
		if by, dup := taken[m.Target]; dup {
			return api.Invalid(field, "%s %s is also the path of %s", field, rules.Quote(m.Target), by).
				WithHint("give each a path of its own")
		}
		taken[m.Target] = field
	}
	return nil
}

func checkFiles(d *decision) *api.Error {
	if n := len(d.spec.Files); n > maxFiles {
		return rules.TooLarge("files", "there are %d files", n).WithHint("at most %d; copy more in as a tar", maxFiles)
	}
	total, taken := 0, map[string]string{}
	for i := range d.spec.Files {
		f, field := &d.spec.Files[i], rules.ElementAt("files", i)
		var err *api.Error
		if strings.HasSuffix(f.Path, "/") {
			return api.Invalid(field+".path", "%s.path %s is a directory's", field, rules.Quote(f.Path)).WithHint("name the file itself")
		}
		if f.Path, err = cleanTarget(field+".path", f.Path); err != nil {
			return err
		}
		if by, dup := taken[f.Path]; dup {
			return api.Invalid(field+".path", "%s.path %s is also the path of %s", field, rules.Quote(f.Path), by).
				WithHint("write each file once")
		}
		taken[f.Path] = field
		if f.Mode > 0o777 {
			return api.Invalid(field+".mode", "%s.mode is 0%o", field, f.Mode).
				WithHint("permission bits only: at most 0777, decimal %d", 0o777)
		}
		if f.Mode == 0 {
			f.Mode = 0o644
		}
		if total += len(f.Content); total > maxFileBytes {
			return rules.TooLarge("files", "the files have more than %s together", rules.FormatSize(maxFileBytes)).
				WithHint("write large files after the create, or copy them in as a tar")
		}
		if err := d.checkWritable(field+".path", f.Path); err != nil {
			return err
		}
	}
	return nil
}

// checkWritable refuses a file that would have to be written to a read-only place. The deepest
// mount that contains it decides.
func (d *decision) checkWritable(field, p string) *api.Error {
	w := d.spec.Workspace
	where, readOnly := "the root", *d.spec.ReadOnlyRoot
	deepest := ""
	consider := func(target, name string, ro bool) *api.Error {
		if rules.Within(target, p) {
			return api.Invalid(field, "%s %s is a directory: %s is there", field, rules.Quote(p), name).WithHint("name a file below it")
		}
		if rules.Within(p, target) && len(target) >= len(deepest) {
			deepest, where, readOnly = target, name, ro
		}
		return nil
	}
	for _, t := range writableInside() {
		if err := consider(t, t, false); err != nil {
			return err
		}
	}
	if err := consider(w.Path, "the workspace", w.ReadOnly); err != nil {
		return err
	}
	for i, m := range d.spec.Mounts {
		if err := consider(m.Target, "mount "+strconv.Itoa(i), m.ReadOnly); err != nil {
			return err
		}
	}
	if !readOnly {
		return nil
	}
	return api.Invalid(field, "%s %s lies in %s, which is read-only in this sandbox", field, rules.Quote(p), where).
		WithHint("write it below /tmp, or where the sandbox may write")
}
