package agent

import (
	"context"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/agent/wire"
)

// LargeFile is one of the largest files of a filesystem.
type LargeFile struct {
	Path string
	Size int64
}

// maxLargeFiles bounds what is taken of an answer.
const maxLargeFiles = 1024

// LargeFiles names files of at least that size on the filesystem that the directory
// top lies on, the largest first and no more than some. What runs inside may change
// them at any time. An agent that cannot tell is api.CodeUnsupported.
func (c *Client) LargeFiles(ctx context.Context, top string, least int64) ([]LargeFile, error) {
	found, err := ask[wire.Large](ctx, c, wire.Request{Op: wire.OpLarge, Path: api.Bytes(top), Least: least})
	if err != nil {
		return nil, err
	}
	var files []LargeFile
	for _, f := range found.Files[:min(len(found.Files), maxLargeFiles)] {
		files = append(files, LargeFile{Path: string(f.Path), Size: f.Size})
	}
	return files, nil
}
