package agent

import (
	"context"
	"fmt"
	"io"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/agent/wire"
)

// maxSkipped bounds the entries that a report names.
const maxSkipped = 1000

// TarOut writes a tar of the file or directory at path to w. The names in it are
// relative to path; for a file, its own name. The paths of o are relative and
// clean.
func (c *Client) TarOut(ctx context.Context, path string, o api.TarOutOptions, w io.Writer) (api.TarReport, error) {
	req := wire.Request{
		Op: wire.OpPack, Path: api.Bytes(path), Tar: &wire.Tar{Exclude: rawPaths(o.Exclude), KeepLinks: o.KeepLinks, CopyHardLinks: o.CopyHardLinks},
	}
	since := req.Op.Since()
	switch {
	case o.CopyHardLinks:
		since = wire.CopyHardLinksSince
	case c.version < since && len(o.Exclude) == 0:
		req.Op = wire.OpTarOut // which keeps links
		since = req.Op.Since()
	}
	k, err := c.openSince(ctx, since, req)
	if err != nil {
		return api.TarReport{}, err
	}
	return packFrames(k, w)
}

// packFrames writes the data of an OpPack to w, and ends the call.
func packFrames(k *call, w io.Writer) (api.TarReport, error) {
	defer k.end()
	for {
		kind, payload, err := k.next()
		if err != nil {
			return api.TarReport{}, err
		}
		switch kind {
		case wire.KindData:
			if _, err := w.Write(payload); err != nil {
				return api.TarReport{}, fmt.Errorf("write tar: %w", err)
			}
		case wire.KindReply:
			return decodeReport(payload)
		default:
			return api.TarReport{}, unexpected(kind)
		}
	}
}

// TarIn unpacks a tar from r below the directory path, which is made when it is
// missing. Nothing is written outside of it. What is made belongs to o.Owner
// (empty is Config.User). The paths of o are relative and clean.
func (c *Client) TarIn(ctx context.Context, path string, o api.TarInOptions, r io.Reader) (api.TarReport, error) {
	req := wire.Request{Op: wire.OpUnpack, Path: api.Bytes(path), User: o.Owner, Tar: tarIn(o)}
	if req.Tar.KeepOwner {
		req.User = ""
	}
	plain := len(o.Exclude) == 0 && !req.Tar.KeepOwner && !o.Atomic && !o.Clear && (o.Links == "" || o.Links == api.LinksKeep)
	if c.version < req.Op.Since() && plain {
		req.Op = wire.OpTarIn
	}
	k, err := c.open(ctx, req)
	if err != nil {
		return api.TarReport{}, err
	}
	rep, err := send[api.TarReport](k, r, nil)
	if err != nil {
		return api.TarReport{}, err
	}
	return saneReport(rep), nil
}

// tarIn is what the agent is told of an import.
func tarIn(o api.TarInOptions) *wire.Tar {
	return &wire.Tar{
		Exclude: rawPaths(o.Exclude), KeepOwner: o.Owner == api.OwnerKeep, Atomic: o.Atomic, Clear: o.Clear, Keep: rawPaths(o.Keep), Links: o.Links,
	}
}

func decodeReport(payload []byte) (api.TarReport, error) {
	rep, err := wire.Decode[api.TarReport](payload)
	if err != nil {
		return api.TarReport{}, classify(err)
	}
	return saneReport(rep), nil
}

func saneReport(r api.TarReport) api.TarReport {
	r.Entries, r.Bytes = max(r.Entries, 0), max(r.Bytes, 0)
	r.Skipped = r.Skipped[:min(len(r.Skipped), maxSkipped)]
	for i := range r.Skipped {
		r.Skipped[i] = api.TarSkip{Path: bounded(r.Skipped[i].Path), Reason: bounded(r.Skipped[i].Reason)}
	}
	return r
}

func rawPaths(paths []string) []api.Bytes {
	var raw []api.Bytes
	for _, p := range paths {
		raw = append(raw, api.Bytes(p))
	}
	return raw
}

// Rule is the access to one path of a mount.
type Rule = wire.Rule

// Restrict puts the rules of mounts in force, once, before anything is started.
// On error some of them may be, and the sandbox is good for nothing.
func (c *Client) Restrict(ctx context.Context, rules []Rule) error {
	_, err := ask[wire.Empty](ctx, c, wire.Request{Op: wire.OpRestrict, Rules: rules})
	return err
}
