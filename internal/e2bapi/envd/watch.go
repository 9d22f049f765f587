package envd

import (
	"context"
	"errors"

	"connectrpc.com/connect"

	"github.com/cloche-dev/cloche/internal/e2bapi/envd/envdpb"
)

// noWatch refuses the watch of a directory.
func noWatch() *connect.Error {
	return connect.NewError(connect.CodeUnimplemented, errors.New("this version of Cloche does not watch directories of sandboxes"))
}

// WatchDir implements the service.
func (f *filesystemService) WatchDir(context.Context, *connect.Request[envdpb.WatchDirRequest], *connect.ServerStream[envdpb.WatchDirResponse]) error {
	return noWatch()
}

// CreateWatcher implements the service.
func (f *filesystemService) CreateWatcher(context.Context, *connect.Request[envdpb.CreateWatcherRequest]) (*connect.Response[envdpb.CreateWatcherResponse], error) {
	return nil, noWatch()
}

// GetWatcherEvents implements the service.
func (f *filesystemService) GetWatcherEvents(context.Context, *connect.Request[envdpb.GetWatcherEventsRequest]) (*connect.Response[envdpb.GetWatcherEventsResponse], error) {
	return nil, noWatch()
}

// RemoveWatcher implements the service.
func (f *filesystemService) RemoveWatcher(context.Context, *connect.Request[envdpb.RemoveWatcherRequest]) (*connect.Response[envdpb.RemoveWatcherResponse], error) {
	return nil, noWatch()
}
