package langbot

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
)

// maxStorageEntries bounds how much of a directory is counted.
const maxStorageEntries = 200_000

// storageInfo is what a workspace occupies on the host.
type storageInfo struct {
	SizeBytes   int64              `json:"size_bytes"`
	Directories []storageDirectory `json:"directories"`
	Sessions    int                `json:"active_sessions"`
	Managed     int                `json:"managed_processes"`
}

// storageDirectory is one part of it. One of kind "detail" is counted in its parent too.
type storageDirectory struct {
	Key       string  `json:"key"`
	Path      string  `json:"path"`
	Kind      string  `json:"kind"`
	Parent    *string `json:"parent_key"`
	Exists    bool    `json:"exists"`
	SizeBytes int64   `json:"size_bytes"`
	Files     int     `json:"file_count"`
	Errors    int     `json:"error_count"`
	Scope     string  `json:"scope"`
}

// storage measures the directory of a workspace. What lies in sandboxes ends with them
// and is not counted.
func (s *Server) storage(ctx context.Context, c call) (any, error) {
	st := s.status(ctx, c.place)
	out := storageInfo{Directories: []storageDirectory{}, Sessions: st.Sessions, Managed: st.Managed}
	cfg := s.settings()
	if cfg.workspace == "" {
		return out, nil
	}
	dir, whole := filepath.Join(cfg.workspace, "tenants", c.place.durable()), "workspace"
	root, err := os.OpenRoot(dir)
	if err == nil {
		defer root.Close()
	}
	for _, part := range []struct{ key, name string }{{whole, "."}, {"mcp", ".mcp"}, {"inbox", "inbox"}, {"outbox", "outbox"}} {
		d := storageDirectory{Key: part.key, Path: filepath.Join(dir, part.name), Kind: "detail", Parent: &whole, Scope: "runtime_host"}
		if part.key == whole {
			d.Kind, d.Parent = "root", nil
		}
		if root != nil {
			d.measure(ctx, root, part.name)
		} else if !errors.Is(err, fs.ErrNotExist) {
			d.Errors = 1
		}
		out.Directories = append(out.Directories, d)
	}
	out.SizeBytes = out.Directories[0].SizeBytes
	return out, nil
}

// measure counts what is below a name of root. Nothing is followed out of it, also if
// it changes meanwhile.
func (d *storageDirectory) measure(ctx context.Context, root *os.Root, name string) {
	seen := 0
	_ = fs.WalkDir(root.FS(), name, func(_ string, e fs.DirEntry, err error) error {
		if seen++; seen > maxStorageEntries || ctx.Err() != nil {
			d.Errors++
			return fs.SkipAll
		}
		switch {
		case errors.Is(err, fs.ErrNotExist):
			return nil
		case err != nil:
			d.Errors++
			return nil
		}
		d.Exists = true
		if e.IsDir() {
			return nil
		}
		if fi, err := e.Info(); err == nil {
			d.SizeBytes += fi.Size()
			d.Files++
		}
		return nil
	})
}
