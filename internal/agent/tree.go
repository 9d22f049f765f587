package agent

import (
	"bufio"
	"bytes"
	"context"
	"io"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/agent/wire"
)

// TreeEntry is a file of a filesystem in a sandbox. What it says comes from the sandbox's kernel: programs
// inside can choose all of it but Ctime, Ino and Dev.
type TreeEntry = wire.TreeEntry

// MaxPackNames bounds the bytes of the names of one PackOnly: they are in one request.
const MaxPackNames = wire.MaxJSON / 4

// maxTreeLine bounds a line of a tree: a path of 4,096 bytes in JSON, and the numbers.
const maxTreeLine = 64 << 10

// Tree calls fn with the files of the filesystem that the directory top lies on, from there down, each
// directory before what is in it. Of what is mounted below top only the mount points are listed. An agent that cannot list is
// api.CodeUnsupported.
func (c *Client) Tree(ctx context.Context, top string, fn func(TreeEntry) error) error {
	k, err := c.open(ctx, wire.Request{Op: wire.OpTree, Path: api.Bytes(top)})
	if err != nil {
		return err
	}
	defer k.end()
	lines := bufio.NewScanner(&dataReader{k: k, left: -1})
	lines.Buffer(nil, maxTreeLine)
	for lines.Scan() {
		e, err := wire.Decode[TreeEntry](bytes.TrimSpace(lines.Bytes()))
		if err != nil {
			return classify(err)
		}
		if err := fn(e); err != nil {
			return err
		}
	}
	return lines.Err()
}

// PackOnly writes a tar of entries below top to w, whose names are relative to top: of a directory, the
// entry without what is in it. What is lost of a file is in the report. The names together have at most
// [MaxPackNames] bytes.
func (c *Client) PackOnly(ctx context.Context, top string, names []string, w io.Writer) (api.TarReport, error) {
	k, err := c.openSince(ctx, wire.TarOnlySince, wire.Request{
		Op: wire.OpPack, Path: api.Bytes(top), Tar: &wire.Tar{KeepLinks: true, Only: rawPaths(names)},
	})
	if err != nil {
		return api.TarReport{}, err
	}
	return packFrames(k, w)
}
