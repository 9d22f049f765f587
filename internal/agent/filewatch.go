package agent

import (
	"cmp"
	"context"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/agent/wire"
)

// Watch calls fn with the changes in a directory, the first of kind api.FileReady. It returns nil when
// the directory is removed, and otherwise an error: of fn, unchanged, of the connection, or the end of
// ctx. A watch that is not ready within the silence that [Client.Watch] allows fails: the agent may
// answer pings while a directory is not opened, as one of a gVisor sandbox without its gofer.
func (f Files) Watch(ctx context.Context, path string, o api.WatchOptions, fn func(api.FileChange) error) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	ready := f.c.expect(cancel)
	defer ready()
	k, err := f.c.openIdle(ctx, f.request(wire.Request{Op: wire.OpWatchFiles, Path: api.Bytes(path), Recursive: o.Recursive, Entries: o.Entries}, wire.Place{}))
	if err != nil {
		return cmp.Or(late(ctx), err)
	}
	defer k.end()
	// An agent that does not answer is given up until it is ready; later it may have nothing to say.
	answered := f.c.Attend()
	defer answered()
	for {
		kind, payload, err := k.next()
		answered()
		ready()
		if err != nil {
			return cmp.Or(late(ctx), err)
		}
		switch kind {
		case wire.KindEnd:
			return nil
		case wire.KindReply:
		default:
			return unexpected(kind)
		}
		c, err := wire.Decode[api.FileChange](payload)
		if err != nil {
			return classify(err)
		}
		if err := fn(saneChange(c)); err != nil {
			return err
		}
	}
}

// saneChange keeps of a change what an agent may say.
func saneChange(c api.FileChange) api.FileChange {
	const maxPath = 4096 * 4
	out := api.FileChange{Kind: c.Kind, Name: cut(c.Name, maxPath)}
	if len(c.NameBytes) <= maxPath {
		out.NameBytes = c.NameBytes
	}
	if c.Info != nil {
		info := saneFile(*c.Info)
		out.Info = &info
	}
	switch c.Kind {
	case api.FileReady, api.FileCreate, api.FileWrite, api.FileRemove, api.FileRename, api.FileChmod, api.FileOverflow:
	default:
		out.Kind = api.FileOverflow
	}
	return out
}
