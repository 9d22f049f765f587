//go:build !linux

package files

import (
	"context"
	"io"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/agent"
)

// watchHost watches nothing: no directory of this system is mounted.
func (f *Files) watchHost(context.Context, Sandbox, *agent.Client, api.FilePlace, api.WatchOptions, func(api.FileChange) error) (watched bool, err error) {
	return false, nil
}

// hostReader reads nothing.
func hostReader(Sandbox, api.FilePlace, api.FileInfo, int64, int64) io.ReadCloser { return nil }

// write writes a file by the agent.
func write(ctx context.Context, _ Sandbox, c *agent.Client, at api.FilePlace, o agent.WriteOptions, r io.Reader) (api.FileInfo, error) {
	return c.Files(at.FileAccess).Write(ctx, at.Path, o, r)
}

// packHost packs nothing.
func packHost(Sandbox, string, api.TarOutOptions, io.Writer) (report api.TarReport, packed bool, err error) {
	return api.TarReport{}, false, nil
}

// unpack unpacks a tar by the agent.
func (f *Files) unpack(ctx context.Context, _ Sandbox, c *agent.Client, name string, o api.TarInOptions, r io.Reader) (api.TarReport, error) {
	return c.TarIn(ctx, name, o, r)
}
