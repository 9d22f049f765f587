//go:build linux

package fsop

import (
	"errors"
	"os"
	"path"

	"golang.org/x/sys/unix"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/agent/guest/pathwalk"
	"github.com/cloche-dev/cloche/internal/agent/guest/session"
	"github.com/cloche-dev/cloche/internal/agent/wire"
	"github.com/cloche-dev/cloche/internal/archive"
	"github.com/cloche-dev/cloche/internal/archive/pack"
)

// frameWriter sends what is written as data frames.
type frameWriter struct{ p *session.Call }

func (w frameWriter) Write(b []byte) (int, error) {
	if err := w.p.Bytes(wire.KindData, b); err != nil {
		return 0, err
	}
	return len(b), nil
}

// tarOut sends a tar of what is at name.
func (fo *Files) tarOut(p *session.Call, name string, o wire.Tar) error {
	p.Attend(nil) // as for a large file
	f, err := pathwalk.Open(name, unix.O_RDONLY, 0)
	if err != nil {
		return pathwalk.FileError("pack", name, err)
	}
	defer f.Close()
	opts := pack.Options{Exclude: archive.NewPathSet(o.Exclude), CopyHardLinks: o.CopyHardLinks, Leave: leftOut}
	if o.Only != nil {
		opts.Only = make([]string, 0, len(o.Only))
		for _, entry := range o.Only {
			opts.Only = append(opts.Only, string(entry))
		}
	}
	if !o.KeepLinks {
		opts.Roots = []string{path.Clean(name)}
		if real, err := os.Readlink(pathwalk.ProcFD(int(f.Fd()))); err == nil && real != opts.Roots[0] {
			opts.Roots = append(opts.Roots, real)
		}
	}
	report, err := pack.Write(frameWriter{p}, int(f.Fd()), path.Base(name), opts)
	if errors.Is(err, pack.ErrKind) {
		return api.Invalid("path", "pack %.500q: %w", name, err)
	}
	if err != nil {
		return pathwalk.FileError("pack", name, err)
	}
	return p.JSON(wire.KindReply, report)
}

// leftOut says why what was opened is not packed.
func leftOut(st *unix.Stat_t) string {
	if pathwalk.IsMask(st) {
		return "a rule of its mount allows no access"
	}
	return ""
}
