package agent

import (
	"context"
	"fmt"
	"io"

	"github.com/cloche-dev/cloche"
	"github.com/cloche-dev/cloche/internal/agent/wire"
)

// maxSkipped bounds the entries that a report names.
const maxSkipped = 1000

// TarOut writes a tar of the file or directory at path to w. The names in it are
// relative to path; for a file, its own name.
func (c *Client) TarOut(ctx context.Context, path string, w io.Writer) (cloche.TarReport, error) {
	k, err := c.open(ctx, wire.Request{Op: wire.OpTarOut, Path: cloche.Bytes(path)})
	if err != nil {
		return cloche.TarReport{}, err
	}
	defer k.end()
	for {
		kind, payload, err := k.next()
		if err != nil {
			return cloche.TarReport{}, err
		}
		switch kind {
		case wire.KindData:
			if _, err := w.Write(payload); err != nil {
				return cloche.TarReport{}, fmt.Errorf("write tar: %w", err)
			}
		case wire.KindReply:
			return decodeReport(payload)
		default:
			return cloche.TarReport{}, unexpected(kind)
		}
	}
}

// TarIn unpacks a tar from r below the directory path, which is made when it is
// missing. Nothing is written outside of it. What is made belongs to user (empty
// is Config.User).
func (c *Client) TarIn(ctx context.Context, path, user string, r io.Reader) (cloche.TarReport, error) {
	k, err := c.open(ctx, wire.Request{Op: wire.OpTarIn, Path: cloche.Bytes(path), User: user})
	if err != nil {
		return cloche.TarReport{}, err
	}
	rep, err := send[cloche.TarReport](k, r)
	if err != nil {
		return cloche.TarReport{}, err
	}
	return saneReport(rep), nil
}

func decodeReport(payload []byte) (cloche.TarReport, error) {
	rep, err := wire.Decode[cloche.TarReport](payload)
	if err != nil {
		return cloche.TarReport{}, classify(err)
	}
	return saneReport(rep), nil
}

func saneReport(r cloche.TarReport) cloche.TarReport {
	r.Entries, r.Bytes = max(r.Entries, 0), max(r.Bytes, 0)
	r.Skipped = r.Skipped[:min(len(r.Skipped), maxSkipped)]
	for i := range r.Skipped {
		r.Skipped[i] = cloche.TarSkip{Path: bounded(r.Skipped[i].Path), Reason: bounded(r.Skipped[i].Reason)}
	}
	return r
}
