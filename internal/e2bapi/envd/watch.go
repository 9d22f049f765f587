package envd

import (
	"context"
	"errors"
	"fmt"
	"path"
	"time"

	"connectrpc.com/connect"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/envdpb"
)

// errWatchGone is the end of a watch whose directory is gone.
var errWatchGone = errors.New("the watched directory is gone")

// watched is a directory that a client watches.
type watched struct {
	*view
	at api.FilePlace
	o  api.WatchOptions
}

// watchRequest is what the requests of both kinds of watches have.
type watchRequest interface {
	GetPath() string
	GetRecursive() bool
	GetIncludeEntry() bool
}

// watched checks the request for a watch.
func (f *filesystemService) watched(ctx context.Context, req connect.AnyRequest, m watchRequest) (*watched, error) {
	v, dir, err := f.at(ctx, req, m.GetPath())
	if err != nil {
		return nil, err
	}
	info, err := v.stat(ctx, dir, true)
	if err != nil {
		return nil, fileError(dir, err)
	}
	if info.Type != api.TypeDir {
		return nil, connect.NewError(connect.CodeInvalidArgument, fmt.Errorf("path is not a directory: %s", dir))
	}
	return &watched{view: v, at: v.who.place(dir), o: api.WatchOptions{Recursive: m.GetRecursive(), Entries: m.GetIncludeEntry()}}, nil
}

// eventTypes are E2B's names of changes.
var eventTypes = map[api.FileChangeKind]envdpb.EventType{
	api.FileCreate: envdpb.EventType_EVENT_TYPE_CREATE,
	api.FileWrite:  envdpb.EventType_EVENT_TYPE_WRITE,
	api.FileRemove: envdpb.EventType_EVENT_TYPE_REMOVE,
	api.FileRename: envdpb.EventType_EVENT_TYPE_RENAME,
	api.FileChmod:  envdpb.EventType_EVENT_TYPE_CHMOD,
}

// event is what a client is told of a change.
func (w *watched) event(ctx context.Context, c api.FileChange) (*envdpb.FilesystemEvent, error) {
	if c.Kind == api.FileOverflow {
		return nil, connect.NewError(connect.CodeDataLoss, errors.New("changes of files were lost: list the directory and watch it again"))
	}
	ev := &envdpb.FilesystemEvent{Name: validText(c.Name), Type: eventTypes[c.Kind]}
	if c.Info != nil && w.o.Entries {
		ev.Entry, _ = w.describe(ctx, path.Join(w.at.Path, c.Name), c.Info) // it may be gone
	}
	return ev, nil
}

// run watches, and calls ready once and then fn with what a client is told.
func (w *watched) run(ctx context.Context, ready func() error, fn func(*envdpb.FilesystemEvent) error) error {
	err := w.core.WatchFiles(ctx, w.who.sb.Caller, w.who.sb.Ref, w.at, w.o, func(c api.FileChange) error {
		if c.Kind == api.FileReady {
			return ready()
		}
		ev, err := w.event(ctx, c)
		if err != nil {
			return err
		}
		return fn(ev)
	})
	if err == nil {
		err = errWatchGone
	}
	return err
}

// WatchDir implements the service.
func (f *filesystemService) WatchDir(ctx context.Context, req *connect.Request[envdpb.WatchDirRequest], out *connect.ServerStream[envdpb.WatchDirResponse]) error {
	w, err := f.watched(ctx, req, req.Msg)
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
		ended <- w.run(ctx, func() error {
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
