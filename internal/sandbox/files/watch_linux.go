package files

import (
	"context"
	"os"
	"path"
	"strings"
	"unicode/utf8"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/agent"
	"github.com/cloche-dev/cloche/internal/filewatch"
	"github.com/cloche-dev/cloche/internal/workspace"
)

const (
	// maxHostWatches bounds the watches of directories of this machine by all sandboxes. Each takes an
	// inotify instance of the daemon's user, who has 128 by default.
	maxHostWatches = 32
	// maxHostDirs bounds the directories of one.
	maxHostDirs = 4096
	// hiddenPrefix begins the names of files that the agent moves to their real name.
	hiddenPrefix = ".cloche-"
)

// watchHost watches a directory from outside, where both the sandbox's changes and this machine's are
// seen. It returns false, and has called fn for nothing, if the agent has to watch instead: there are
// rules, other mounts below, or the path is not one of the directory's own.
func (f *Files) watchHost(ctx context.Context, s Sandbox, client *agent.Client, at api.FilePlace, o api.WatchOptions, fn func(api.FileChange) error) (watched bool, err error) {
	dir, rel, ok := hostDir(s, at)
	if !ok {
		return false, nil
	}
	if f.hostWatches.Add(1) > maxHostWatches {
		f.hostWatches.Add(-1)
		return false, nil
	}
	defer f.hostWatches.Add(-1)
	// Nothing is asked of the sandbox, whose gofer may hang. The caller gets the agent's errors of a path
	// that is missing or no directory.
	root, err := openBelow(dir, rel)
	if err != nil {
		return false, nil //nolint:nilerr // a link, or a directory that was replaced
	}
	defer root.Close()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	go func() { // ends with the watch
		select {
		case <-s.Ended():
			cancel()
		case <-ctx.Done():
		}
	}()
	options := filewatch.Options{Recursive: o.Recursive, MaxDirs: maxHostDirs, Hide: func(base string) bool { return strings.HasPrefix(base, hiddenPrefix) }}
	err = filewatch.Run(ctx, root, options, func(c filewatch.Change) error {
		watched = true
		out := api.FileChange{Kind: c.Kind, Name: c.Name}
		if !utf8.ValidString(c.Name) {
			out.Name, out.NameBytes = strings.ToValidUTF8(c.Name, "\uFFFD"), []byte(c.Name)
		}
		if o.Entries && c.Name != "" {
			ctx, cancel := context.WithTimeout(ctx, callTimeout)
			info, err := client.Files(at.FileAccess).Stat(ctx, path.Join(at.Path, c.Name), false)
			cancel()
			if err == nil {
				out.Info = &info
			}
		}
		return fn(out)
	})
	return watched, err
}

// hostDir finds the directory of this machine that a path inside lies in, and the rest of the path.
func hostDir(s Sandbox, at api.FilePlace) (dir workspace.Attached, rel string, ok bool) {
	info := s.Info()
	ruled := map[string]bool{info.Workspace.Path: len(info.Workspace.Rules) > 0 || info.Workspace.Layered}
	for _, m := range info.Mounts {
		ruled[m.Target] = len(m.Rules) > 0
	}
	if !at.FileAccess.IsZero() || !path.IsAbs(at.Path) {
		return dir, "", false
	}
	name := path.Clean(at.Path)
	for _, d := range s.Dirs() {
		below, inside := cutDir(name, d.Target)
		switch {
		case inside && len(d.Target) > len(dir.Target):
			dir, rel, ok = d, below, !ruled[d.Target]
		case !inside:
			if _, covers := cutDir(d.Target, name); covers {
				return dir, "", false // another mount is below
			}
		}
	}
	return dir, rel, ok
}

// cutDir returns the part of a path below a directory.
func cutDir(name, dir string) (below string, ok bool) {
	if name == dir {
		return "", true
	}
	return strings.CutPrefix(name, strings.TrimSuffix(dir, "/")+"/")
}

// openBelow opens a directory without following links.
func openBelow(d workspace.Attached, rel string) (*os.File, error) {
	dir, err := d.Open()
	if err != nil {
		return nil, err
	}
	defer dir.Close()
	top, err := dir.File()
	if err != nil {
		return nil, err
	}
	defer top.Close()
	fd, err := filewatch.Open(int(top.Fd()), rel, nil)
	if err != nil {
		return nil, err
	}
	return os.NewFile(uintptr(fd), d.Path), nil
}
