package agent

import (
	"context"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/agent/wire"
)

// maxToolName bounds each path that a tool tells.
const maxToolName = 4 * 4096

// ReadText reads lines of a text file. Like the other tools it needs a root.
func (c *Client) ReadText(ctx context.Context, r api.ToolRead) (api.ToolText, error) {
	t, err := ask[api.ToolText](ctx, c, wire.Request{Op: wire.OpTool, Tool: &wire.Tool{Read: &r}})
	if err != nil {
		return api.ToolText{}, err
	}
	t.Path, t.Content = cut(t.Path, maxToolName), cut(t.Content, 3*api.MaxToolText) // U+FFFD has three bytes
	return t, nil
}

// WriteText replaces a file, or makes it as user's.
func (c *Client) WriteText(ctx context.Context, user string, w api.ToolWrite) (api.ToolWritten, error) {
	return c.written(ctx, user, wire.Tool{Write: &w})
}

// EditText replaces text in a file.
func (c *Client) EditText(ctx context.Context, user string, e api.ToolEdit) (api.ToolWritten, error) {
	return c.written(ctx, user, wire.Tool{Edit: &e})
}

func (c *Client) written(ctx context.Context, user string, t wire.Tool) (api.ToolWritten, error) {
	w, err := ask[api.ToolWritten](ctx, c, wire.Request{Op: wire.OpTool, User: user, Tool: &t})
	if err != nil {
		return api.ToolWritten{}, err
	}
	w.Path = cut(w.Path, maxToolName)
	return w, nil
}

// Glob finds files by name.
func (c *Client) Glob(ctx context.Context, g api.ToolGlob) (api.ToolFiles, error) {
	l, err := ask[api.ToolFiles](ctx, c, wire.Request{Op: wire.OpTool, Tool: &wire.Tool{Glob: &g}})
	if err != nil {
		return api.ToolFiles{}, err
	}
	if len(l.Files) > api.MaxToolGlob {
		return api.ToolFiles{}, classify(errTooMuch)
	}
	for i := range l.Files {
		f := &l.Files[i]
		f.Path, f.Size = cut(f.Path, maxToolName), max(f.Size, 0)
		switch f.Type {
		case api.TypeFile, api.TypeDir, api.TypeSymlink:
		default:
			f.Type = api.TypeOther
		}
	}
	l.Partial = sanePartial(l.Partial)
	return l, nil
}

// Grep finds lines in text files.
func (c *Client) Grep(ctx context.Context, g api.ToolGrep) (api.ToolLines, error) {
	const told = 100
	l, err := ask[api.ToolLines](ctx, c, wire.Request{Op: wire.OpTool, Tool: &wire.Tool{Grep: &g}})
	if err != nil {
		return api.ToolLines{}, err
	}
	if len(l.Matches) > api.MaxToolGrep || len(l.Binary) > told || len(l.Unread) > told {
		return api.ToolLines{}, classify(errTooMuch)
	}
	for i := range l.Matches {
		m := &l.Matches[i]
		m.Path, m.Text = cut(m.Path, maxToolName), cut(m.Text, 4*api.MaxToolShown)
	}
	for _, list := range [][]string{l.Binary, l.Unread} {
		for i := range list {
			list[i] = cut(list[i], maxToolName)
		}
	}
	l.Partial = sanePartial(l.Partial)
	return l, nil
}

func sanePartial(p api.ToolPartial) api.ToolPartial {
	switch p {
	case "", api.PartialMatches, api.PartialFiles, api.PartialTime:
		return p
	}
	return api.PartialFiles
}
