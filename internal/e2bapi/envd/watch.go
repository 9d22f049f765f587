package envd

import (
	"context"
	"errors"
	"fmt"
	"path"
	"strings"
	"time"

	"connectrpc.com/connect"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/core"
	"github.com/cloche-dev/cloche/internal/e2bapi/envd/envdpb"
)

// FileWatch is core's verb that watches a directory. A Core without it refuses every watch.
type FileWatch interface {
	// Watch calls fn with the changes in a directory, first with FileReady, until fn fails, ctx ends
	// or the directory is gone.
	Watch(ctx context.Context, caller core.Caller, ref string, o WatchOptions, fn func(FileChange) error) error
}

// WatchOptions say what is watched.
type WatchOptions struct {
	api.FilePlace
	// Recursive includes the directories below, later ones too.
	Recursive bool
	// Entries adds a description of the file to its changes.
	Entries bool
}

// FileChange is one change in a watched directory.
type FileChange struct {
	Kind FileChangeKind
	// Name is relative to the directory, and empty for the directory itself.
	Name string
	// Entry may describe the file.
	Entry *api.FileInfo
}

// FileChangeKind says what happened to a file.
type FileChangeKind string

// The kinds of changes.
const (
	// FileReady comes first: every change after it is told.
	FileReady FileChangeKind = "ready"
	// FileCreate is a new name, FileRename one that the file had before a move.
	FileCreate FileChangeKind = "create"
	FileWrite  FileChangeKind = "write"
	FileRemove FileChangeKind = "remove"
	FileRename FileChangeKind = "rename"
	FileChmod  FileChangeKind = "chmod"
	// FileOverflow means that changes were lost.
	FileOverflow FileChangeKind = "overflow"
)

// tempPrefix begins the name of a file that the agent writes and then moves to its real name.
const tempPrefix = ".cloche-"

// errWatchGone is the end of a watch whose directory is gone.
var errWatchGone = errors.New("the watched directory is gone")

// noWatch refuses the watch of a directory.
func noWatch() *connect.Error {
	return connect.NewError(connect.CodeUnimplemented, errors.New("this version of Cloche does not watch directories of sandboxes"))
}

// watched is a directory that a client watches.
type watched struct {
	*view
	o WatchOptions
	// moved is set after the agent's own file was moved away: the next new name is a file that was
	// written.
	moved bool
}

// watchRequest is what the requests of both kinds of watches have.
type watchRequest interface {
	GetPath() string
	GetRecursive() bool
	GetIncludeEntry() bool
}

// watched checks the request for a watch.
func (f *filesystemService) watched(ctx context.Context, req connect.AnyRequest, m watchRequest) (*watched, FileWatch, error) {
	by, ok := f.s.core.(FileWatch)
	if !ok {
		return nil, nil, noWatch()
	}
	v, dir, err := f.at(ctx, req, m.GetPath())
	if err != nil {
		return nil, nil, err
	}
	info, err := v.stat(ctx, dir, true)
	if err != nil {
		return nil, nil, fileError(dir, err)
	}
	if info.Type != api.TypeDir {
		return nil, nil, connect.NewError(connect.CodeInvalidArgument, fmt.Errorf("path is not a directory: %s", dir))
	}
	return &watched{view: v, o: WatchOptions{FilePlace: v.who.place(dir), Recursive: m.GetRecursive(), Entries: m.GetIncludeEntry()}}, by, nil
}

// events are what a client is told of a change.
func (w *watched) events(ctx context.Context, c FileChange) ([]*envdpb.FilesystemEvent, error) {
	if c.Kind == FileOverflow {
		return nil, connect.NewError(connect.CodeDataLoss, errors.New("changes of files were lost: list the directory and watch it again"))
	}
	if strings.HasPrefix(path.Base(c.Name), tempPrefix) {
		w.moved = c.Kind == FileRename
		return nil, nil
	}
	var kinds []envdpb.EventType
	switch c.Kind {
	case FileCreate:
		kinds = []envdpb.EventType{envdpb.EventType_EVENT_TYPE_CREATE}
		if w.moved {
			kinds = append(kinds, envdpb.EventType_EVENT_TYPE_WRITE)
		}
	case FileWrite:
		kinds = []envdpb.EventType{envdpb.EventType_EVENT_TYPE_WRITE}
	case FileRemove:
		kinds = []envdpb.EventType{envdpb.EventType_EVENT_TYPE_REMOVE}
	case FileRename:
		kinds = []envdpb.EventType{envdpb.EventType_EVENT_TYPE_RENAME}
	case FileChmod:
		kinds = []envdpb.EventType{envdpb.EventType_EVENT_TYPE_CHMOD}
	case FileReady, FileOverflow:
	}
	w.moved = false
	var entry *envdpb.EntryInfo
	if c.Entry != nil && w.o.Entries {
		entry, _ = w.describe(ctx, path.Join(w.o.Path, c.Name), c.Entry) // it may be gone
	}
	out := make([]*envdpb.FilesystemEvent, 0, len(kinds))
	for _, kind := range kinds {
		out = append(out, &envdpb.FilesystemEvent{Name: validText(c.Name), Type: kind, Entry: entry})
	}
	return out, nil
}

// run watches, and calls ready once and then fn with what a client is told.
func (w *watched) run(ctx context.Context, by FileWatch, ready func() error, fn func(*envdpb.FilesystemEvent) error) error {
	err := by.Watch(ctx, w.who.sb.Caller, w.who.sb.Ref, w.o, func(c FileChange) error {
		if c.Kind == FileReady {
			return ready()
		}
		events, err := w.events(ctx, c)
		for _, ev := range events {
			if err := fn(ev); err != nil {
				return err
			}
		}
		return err
	})
	if err == nil {
		err = errWatchGone
	}
	return err
}

// WatchDir implements the service.
func (f *filesystemService) WatchDir(ctx context.Context, req *connect.Request[envdpb.WatchDirRequest], out *connect.ServerStream[envdpb.WatchDirResponse]) error {
	w, by, err := f.watched(ctx, req, req.Msg)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	messages, ended := make(chan *envdpb.WatchDirResponse), make(chan error, 1)
	put := func(m *envdpb.WatchDirResponse) error {
		select {
		case messages <- m:
			return nil
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		ended <- w.run(ctx, by, func() error {
			return put(&envdpb.WatchDirResponse{Event: &envdpb.WatchDirResponse_Start{Start: &envdpb.WatchDirResponse_StartEvent{}}})
		}, func(ev *envdpb.FilesystemEvent) error {
			return put(&envdpb.WatchDirResponse{Event: &envdpb.WatchDirResponse_Filesystem{Filesystem: ev}})
		})
	}()
	defer func() { cancel(); <-done }()
	alive := keepAlive(req.Header())
	idle := time.NewTicker(alive)
	defer idle.Stop()
	for {
		m := &envdpb.WatchDirResponse{Event: &envdpb.WatchDirResponse_Keepalive{Keepalive: &envdpb.WatchDirResponse_KeepAlive{}}}
		select {
		case <-ctx.Done():
			return rpcError(ctx.Err())
		case err := <-ended:
			return watchError(ctx, err)
		case m = <-messages:
			idle.Reset(alive)
		case <-idle.C:
		}
		if err := out.Send(m); err != nil {
			return err
		}
	}
}

// watchError is the end of a watch as a client gets it; the end of the sandbox cuts the request.
func watchError(ctx context.Context, err error) error {
	if errors.Is(err, errWatchGone) {
		return nil
	}
	if code := api.CodeOf(err); code == api.CodeSandboxLost || code == api.CodeUnavailable {
		requestOf(ctx).cancel(errCut)
	}
	return rpcError(err)
}
