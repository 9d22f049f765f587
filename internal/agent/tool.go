package agent

import (
	"context"

	"github.com/cloche-dev/cloche"
	"github.com/cloche-dev/cloche/internal/agent/wire"
)

// maxToolName bounds each path that a tool tells.
const maxToolName = 4 * 4096

// ReadText reads lines of a text file. Like the other tools it needs a root.
func (c *Client) ReadText(ctx context.Context, r cloche.ToolRead) (cloche.ToolText, error) {
	t, err := ask[cloche.ToolText](ctx, c, wire.Request{Op: wire.OpTool, Tool: &wire.Tool{Read: &r}})
	if err != nil {
		return cloche.ToolText{}, err
	}
	t.Path, t.Content = cut(t.Path, maxToolName), cut(t.Content, 3*cloche.MaxToolText) // U+FFFD has three bytes
	return t, nil
}

// WriteText replaces a file, or makes it as user's.
func (c *Client) WriteText(ctx context.Context, user string, w cloche.ToolWrite) (cloche.ToolWritten, error) {
	return c.written(ctx, user, wire.Tool{Write: &w})
}

// EditText replaces text in a file.
func (c *Client) EditText(ctx context.Context, user string, e cloche.ToolEdit) (cloche.ToolWritten, error) {
	return c.written(ctx, user, wire.Tool{Edit: &e})
}

func (c *Client) written(ctx context.Context, user string, t wire.Tool) (cloche.ToolWritten, error) {
	w, err := ask[cloche.ToolWritten](ctx, c, wire.Request{Op: wire.OpTool, User: user, Tool: &t})
	if err != nil {
		return cloche.ToolWritten{}, err
	}
	w.Path = cut(w.Path, maxToolName)
	return w, nil
}

// Glob finds files by name.
func (c *Client) Glob(ctx context.Context, g cloche.ToolGlob) (cloche.ToolFiles, error) {
	l, err := ask[cloche.ToolFiles](ctx, c, wire.Request{Op: wire.OpTool, Tool: &wire.Tool{Glob: &g}})
	if err != nil {
		return cloche.ToolFiles{}, err
	}
	if len(l.Files) > cloche.MaxToolGlob {
		return cloche.ToolFiles{}, classify(errTooMuch)
	}
	for i := range l.Files {
		f := &l.Files[i]
		f.Path, f.Size = cut(f.Path, maxToolName), max(f.Size, 0)
		switch f.Type {
		case cloche.TypeFile, cloche.TypeDir, cloche.TypeSymlink:
		default:
			f.Type = cloche.TypeOther
		}
	}
	l.Partial = sanePartial(l.Partial)
	return l, nil
}

// Grep finds lines in text files.
func (c *Client) Grep(ctx context.Context, g cloche.ToolGrep) (cloche.ToolLines, error) {
	const told = 100
	l, err := ask[cloche.ToolLines](ctx, c, wire.Request{Op: wire.OpTool, Tool: &wire.Tool{Grep: &g}})
	if err != nil {
		return cloche.ToolLines{}, err
	}
	if len(l.Matches) > cloche.MaxToolGrep || len(l.Binary) > told || len(l.Unread) > told {
		return cloche.ToolLines{}, classify(errTooMuch)
	}
	for i := range l.Matches {
		m := &l.Matches[i]
		m.Path, m.Text = cut(m.Path, maxToolName), cut(m.Text, 4*cloche.MaxToolShown)
	}
	for _, list := range [][]string{l.Binary, l.Unread} {
		for i := range list {
			list[i] = cut(list[i], maxToolName)
		}
	}
	l.Partial = sanePartial(l.Partial)
	return l, nil
}

func sanePartial(p cloche.ToolPartial) cloche.ToolPartial {
	switch p {
	case "", cloche.PartialMatches, cloche.PartialFiles, cloche.PartialTime:
		return p
	}
	return cloche.PartialFiles
}
