package core

import (
	"context"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/policy"
)

// tool returns the sandbox of a file tool, by its ref or by the identity of the request. Operations
// that read or change content are recorded first.
func (s *Service) tool(ctx context.Context, caller Caller, verb policy.Verb, ref string, at api.ToolPlace, do func(id string) error) error {
	d := details{"path": bound(at.Path)}
	if at.Root != "" {
		d["root"] = bound(at.Root)
	}
	sb, err := s.target(caller, ref, at.Naming, s.rules())
	if err != nil {
		return s.refused(ctx, caller, verb, "", d, err)
	}
	if verb == policy.VerbListFiles {
		return s.done(ctx, caller, verb, sb.ID, d, do(sb.ID))
	}
	return s.recorded(ctx, caller, verb, sb.ID, d, func() error { return do(sb.ID) })
}

// ReadText reads lines of a text file for a model.
func (s *Service) ReadText(ctx context.Context, caller Caller, ref string, r api.ToolRead) (out api.ToolText, err error) {
	err = s.tool(ctx, caller, policy.VerbReadFile, ref, r.ToolPlace, func(id string) error {
		out, err = s.opts.Sandboxes.ReadText(ctx, caller, id, r)
		return err
	})
	return out, err
}

// WriteText replaces a text file, or creates it.
func (s *Service) WriteText(ctx context.Context, caller Caller, ref string, w api.ToolWrite) (out api.ToolWritten, err error) {
	err = s.tool(ctx, caller, policy.VerbWriteFile, ref, w.ToolPlace, func(id string) error {
		out, err = s.opts.Sandboxes.WriteText(ctx, caller, id, w)
		return err
	})
	return out, err
}

// EditText replaces text in a file.
func (s *Service) EditText(ctx context.Context, caller Caller, ref string, e api.ToolEdit) (out api.ToolWritten, err error) {
	err = s.tool(ctx, caller, policy.VerbEditFile, ref, e.ToolPlace, func(id string) error {
		out, err = s.opts.Sandboxes.EditText(ctx, caller, id, e)
		return err
	})
	return out, err
}

// Glob finds files by name.
func (s *Service) Glob(ctx context.Context, caller Caller, ref string, g api.ToolGlob) (out api.ToolFiles, err error) {
	err = s.tool(ctx, caller, policy.VerbListFiles, ref, g.ToolPlace, func(id string) error {
		out, err = s.opts.Sandboxes.Glob(ctx, caller, id, g)
		return err
	})
	return out, err
}

// Grep finds lines in text files.
func (s *Service) Grep(ctx context.Context, caller Caller, ref string, g api.ToolGrep) (out api.ToolLines, err error) {
	err = s.tool(ctx, caller, policy.VerbReadFile, ref, g.ToolPlace, func(id string) error {
		out, err = s.opts.Sandboxes.Grep(ctx, caller, id, g)
		return err
	})
	return out, err
}
