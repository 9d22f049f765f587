package envd

import (
	"context"
	"io"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/core"
)

// Core is what the data plane needs of core.
type Core interface {
	Processes
	ProcessInput
	FileReads
	FileChanges
	Get(ctx context.Context, caller core.Caller, ref string) (api.Sandbox, error)
	Stats(ctx context.Context, caller core.Caller, ref string) (api.SandboxStats, error)
}

// Processes are core's verbs on managed processes.
type Processes interface {
	StartProcess(ctx context.Context, caller core.Caller, ref string, spec api.ProcessSpec) (api.Process, error)
	Processes(ctx context.Context, caller core.Caller, ref string) ([]api.Process, error)
	GetProcess(ctx context.Context, caller core.Caller, ref, id string) (api.Process, error)
	WaitProcess(ctx context.Context, caller core.Caller, ref, id string, w api.WaitRequest) (api.Process, error)
	SignalProcess(ctx context.Context, caller core.Caller, ref, id string, r api.SignalRequest) error
	Attach(ctx context.Context, caller core.Caller, ref, id string, r api.AttachRequest) (Attachment, error)
}

// ProcessInput are core's verbs on the input of a process.
type ProcessInput interface {
	ResizeProcess(ctx context.Context, caller core.Caller, ref, id string, size api.Size) error
	WriteStdin(ctx context.Context, caller core.Caller, ref, id string, offset *int64, r io.Reader, end bool) (api.StdinAck, error)
}

// FileReads are core's verbs that read files.
type FileReads interface {
	StatFile(ctx context.Context, caller core.Caller, ref string, at api.FilePlace, follow bool) (api.FileInfo, error)
	ListFiles(ctx context.Context, caller core.Caller, ref string, at api.FilePlace, cursor string, limit int) (api.FileList, error)
	ReadFile(ctx context.Context, caller core.Caller, ref string, at api.FilePlace, offset, length int64) (io.ReadCloser, api.FileInfo, error)
	WatchFiles(ctx context.Context, caller core.Caller, ref string, at api.FilePlace, o api.WatchOptions, fn func(api.FileChange) error) error
}

// FileChanges are core's verbs that change files.
type FileChanges interface {
	WriteFile(ctx context.Context, caller core.Caller, ref string, at api.FilePlace, mode uint32, r io.Reader) (api.FileInfo, error)
	MakeDir(ctx context.Context, caller core.Caller, ref string, at api.FilePlace, o api.MakeDirOptions) error
	MoveFile(ctx context.Context, caller core.Caller, ref string, from api.FilePlace, to string) error
	RemoveFile(ctx context.Context, caller core.Caller, ref string, at api.FilePlace, o api.RemoveFileOptions) error
}

// Attachment is a reader of a process. Close leaves the process running.
type Attachment interface {
	Recv() (core.AttachEvent, error)
	Close() error
}

// FromCore makes a Core of core's own service.
func FromCore(s *core.Service) Core { return service{s} }

type service struct{ *core.Service }

func (s service) Attach(ctx context.Context, caller core.Caller, ref, id string, r api.AttachRequest) (Attachment, error) {
	a, err := s.Service.Attach(ctx, caller, ref, id, r)
	if err != nil {
		return nil, err
	}
	return a, nil
}
