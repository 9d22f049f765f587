//go:build linux

package fsop

import (
	"sync/atomic"

	"golang.org/x/sys/unix"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/agent/guest/identity"
	"github.com/cloche-dev/cloche/internal/agent/guest/pathwalk"
	"github.com/cloche-dev/cloche/internal/agent/guest/session"
	"github.com/cloche-dev/cloche/internal/agent/wire"
)

// Files carries out the operations on files.
type Files struct {
	id    identity.Identity
	users *identity.Users
	rules *pathwalk.Restrictions

	watches atomic.Int32 // the directories that are watched
}

// New returns the file operations of a sandbox.
func New(id identity.Identity, users *identity.Users, rules *pathwalk.Restrictions) *Files {
	return &Files{id: id, users: users, rules: rules}
}

// Do carries out what concerns files. Paths are those of the sandbox, which
// is the agent's own view; links are followed as the kernel does, but not into
// /proc's, which lead out of the file system and to the agent itself.
func (fo *Files) Do(p *session.Call, req *wire.Request) error {
	if err := pathwalk.CheckPath("path", string(req.Path)); err != nil {
		return err
	}
	name := string(req.Path)
	var err error
	if req.Place != nil {
		err = fo.doScoped(p, name, req)
	} else {
		err = fo.onFile(p, name, req)
	}
	if err != nil && req.Op == wire.OpMove {
		err = fo.rules.Explain(string(req.To), err)
	}
	return fo.rules.Explain(name, err)
}

func (fo *Files) onFile(p *session.Call, name string, req *wire.Request) error {
	switch req.Op {
	case wire.OpStat:
		info, err := pathwalk.Lstat(name)
		if err != nil {
			return pathwalk.FileError("describe", name, err)
		}
		return p.JSON(wire.KindReply, wire.FileReply{Info: identity.Named([]api.FileInfo{info})[0]})
	case wire.OpList:
		list, err := list(name, string(req.Cursor), req.Limit)
		if err != nil {
			return err
		}
		list.Files = identity.Named(list.Files)
		return p.JSON(wire.KindReply, list)
	case wire.OpLarge:
		return p.JSON(wire.KindReply, large(name, req.Least))
	case wire.OpTree:
		return tree(p, name)
	case wire.OpWatchFiles:
		dir, err := pathwalk.Open(name, unix.O_RDONLY|unix.O_DIRECTORY, 0)
		if err != nil {
			return watchError(name, err)
		}
		return fo.watch(p, name, dir, func(fn func() error) error { return fn() }, req)
	case wire.OpRead:
		return read(p, name, req.Offset, req.Length)
	case wire.OpWrite:
		return fo.write(p, name, req)
	case wire.OpMakeDir:
		return p.Done(fo.makeDir(name, req.Mode, req.User))
	case wire.OpMove:
		return p.Done(move(name, string(req.To)))
	case wire.OpRemove:
		return p.Done(remove(name, req.Recursive))
	case wire.OpTarOut:
		return fo.tarOut(p, name, wire.Tar{})
	case wire.OpTarIn:
		return fo.tarIn(p, name, req.User, wire.Tar{})
	case wire.OpPack, wire.OpUnpack, wire.OpHostUnpack:
		if req.Tar == nil {
			req.Tar = &wire.Tar{}
		}
		switch req.Op {
		case wire.OpPack:
			return fo.tarOut(p, name, *req.Tar)
		case wire.OpUnpack:
			return fo.tarIn(p, name, req.User, *req.Tar)
		default:
			return fo.hostUnpack(p, name, req.User, *req.Tar)
		}
	}
	return api.Errorf(api.CodeUnsupported, "this agent knows no operation %.40q", string(req.Op))
}
