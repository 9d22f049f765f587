package envd

import (
	"context"
	"errors"
	"fmt"
	"path"

	"connectrpc.com/connect"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/envdpb"
)

const (
	// maxEntries bounds how many files one list tells.
	maxEntries = 100_000
	// listPage is how many files core is asked for at once.
	listPage = 1000
)

// filesystemService is E2B's service filesystem.Filesystem over core's files.
type filesystemService struct{ s *Server }

// at finds the user and the file of a call.
func (f *filesystemService) at(ctx context.Context, req connect.AnyRequest, name string) (*view, string, error) {
	who, err := f.s.rpcActor(ctx, req.Header())
	if err != nil {
		return nil, "", err
	}
	file, err := who.resolve(name)
	if err != nil {
		return nil, "", err
	}
	return &view{core: f.s.core, who: who}, file, nil
}

// Stat implements the service.
func (f *filesystemService) Stat(ctx context.Context, req *connect.Request[envdpb.StatRequest]) (*connect.Response[envdpb.StatResponse], error) {
	v, file, err := f.at(ctx, req, req.Msg.GetPath())
	if err != nil {
		return nil, err
	}
	entry, err := v.entry(ctx, file)
	if err != nil {
		return nil, fileError(file, err)
	}
	return connect.NewResponse(&envdpb.StatResponse{Entry: entry}), nil
}

// MakeDir implements the service: it makes a directory with its parents.
func (f *filesystemService) MakeDir(ctx context.Context, req *connect.Request[envdpb.MakeDirRequest]) (*connect.Response[envdpb.MakeDirResponse], error) {
	v, dir, err := f.at(ctx, req, req.Msg.GetPath())
	if err != nil {
		return nil, err
	}
	info, err := v.stat(ctx, dir, true)
	switch {
	case err == nil && info.Type == api.TypeDir:
		return nil, connect.NewError(connect.CodeAlreadyExists, fmt.Errorf("directory already exists: %s", dir))
	case err == nil:
		return nil, connect.NewError(connect.CodeInvalidArgument, fmt.Errorf("path already exists but it is not a directory: %s", dir))
	case errnoOf(err) == "ENOTDIR":
		return nil, connect.NewError(connect.CodeInternal, errors.New(textOf(err)))
	case errnoOf(err) != "ENOENT":
		return nil, rpcError(err)
	}
	if err := v.core.MakeDir(ctx, v.who.sb.Caller, v.who.sb.Ref, v.who.place(dir), api.MakeDirOptions{}); err != nil {
		return nil, rpcError(err)
	}
	entry, err := v.entry(ctx, dir)
	if err != nil {
		return nil, fileError(dir, err)
	}
	return connect.NewResponse(&envdpb.MakeDirResponse{Entry: entry}), nil
}

// Move implements the service: it makes the parents of the destination and renames the source.
func (f *filesystemService) Move(ctx context.Context, req *connect.Request[envdpb.MoveRequest]) (*connect.Response[envdpb.MoveResponse], error) {
	v, from, err := f.at(ctx, req, req.Msg.GetSource())
	if err != nil {
		return nil, err
	}
	to, err := v.who.resolve(req.Msg.GetDestination())
	if err != nil {
		return nil, err
	}
	if _, err := v.stat(ctx, from, false); err != nil {
		return nil, fileError(from, err)
	}
	if err := v.parents(ctx, to); err != nil {
		return nil, fileError(to, err)
	}
	if err := v.core.MoveFile(ctx, v.who.sb.Caller, v.who.sb.Ref, v.who.place(from), to); err != nil {
		return nil, fileError(from, err)
	}
	entry, err := v.entry(ctx, to)
	if err != nil {
		return nil, fileError(to, err)
	}
	return connect.NewResponse(&envdpb.MoveResponse{Entry: entry}), nil
}

// parents makes the directories above a path that do not exist.
func (v *view) parents(ctx context.Context, name string) error {
	dir := path.Dir(name)
	if _, err := v.stat(ctx, dir, true); errnoOf(err) != "ENOENT" {
		return err
	}
	return v.core.MakeDir(ctx, v.who.sb.Caller, v.who.sb.Ref, v.who.place(dir), api.MakeDirOptions{})
}

// ListDir implements the service: a directory to a depth, each directory before its content.
func (f *filesystemService) ListDir(ctx context.Context, req *connect.Request[envdpb.ListDirRequest]) (*connect.Response[envdpb.ListDirResponse], error) {
	v, dir, err := f.at(ctx, req, req.Msg.GetPath())
	if err != nil {
		return nil, err
	}
	info, err := v.stat(ctx, dir, true)
	switch {
	case errnoOf(err) == "ELOOP":
		return nil, connect.NewError(connect.CodeFailedPrecondition, fmt.Errorf("too many links: %s", dir))
	case err != nil:
		return nil, fileError(dir, err)
	case info.Type != api.TypeDir:
		return nil, connect.NewError(connect.CodeInvalidArgument, fmt.Errorf("path is not a directory: %s", dir))
	}
	out := &envdpb.ListDirResponse{}
	if err := v.list(ctx, dir, max(req.Msg.GetDepth(), 1), out); err != nil {
		return nil, fileError(dir, err)
	}
	return connect.NewResponse(out), nil
}

// list adds the content of a directory.
func (v *view) list(ctx context.Context, dir string, depth uint32, out *envdpb.ListDirResponse) error {
	for cursor := ""; ; {
		page, err := v.core.ListFiles(ctx, v.who.sb.Caller, v.who.sb.Ref, v.who.place(dir), cursor, listPage)
		if err != nil {
			return err
		}
		for i := range page.Files {
			info := &page.Files[i]
			name := path.Join(dir, nameOf(info))
			entry, err := v.describe(ctx, name, info)
			if errnoOf(err) == "ENOENT" {
				continue // removed meanwhile
			}
			if err != nil {
				return err
			}
			if len(out.Entries) == maxEntries {
				return connect.NewError(connect.CodeResourceExhausted, fmt.Errorf("%s has more than %d entries to this depth: list a smaller part", dir, maxEntries))
			}
			out.Entries = append(out.Entries, entry)
			if info.Type != api.TypeDir || depth <= 1 {
				continue
			}
			if err := v.list(ctx, name, depth-1, out); err != nil && errnoOf(err) != "ENOENT" {
				return err
			}
		}
		if cursor = page.Next; cursor == "" {
			return nil
		}
	}
}

// Remove implements the service: a file, or a directory with its content. It is no error if it does
// not exist.
func (f *filesystemService) Remove(ctx context.Context, req *connect.Request[envdpb.RemoveRequest]) (*connect.Response[envdpb.RemoveResponse], error) {
	v, file, err := f.at(ctx, req, req.Msg.GetPath())
	if err != nil {
		return nil, err
	}
	err = v.core.RemoveFile(ctx, v.who.sb.Caller, v.who.sb.Ref, v.who.place(file), api.RemoveFileOptions{Recursive: true})
	if err != nil && errnoOf(err) != "ENOENT" {
		return nil, fileError(file, err)
	}
	return connect.NewResponse(&envdpb.RemoveResponse{}), nil
}

// fileError is an error about a file as a client gets it.
func fileError(file string, err error) error {
	if errnoOf(err) == "ENOENT" {
		return connect.NewError(connect.CodeNotFound, fmt.Errorf("file not found: %s", file))
	}
	return rpcError(err)
}
