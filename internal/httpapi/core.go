package httpapi

import (
	"context"
	"io"
	"time"

	"github.com/cloche-dev/cloche"
	"github.com/cloche-dev/cloche/internal/core"
)

// Core is what this door needs of the house: core's verbs. A context that ends
// while a Run or a Create is under way makes core undo what it made; core needs
// no caller for that.
type Core interface {
	Create(ctx context.Context, caller core.Caller, spec cloche.SandboxSpec, progress func(step string)) (cloche.Sandbox, error)
	Get(ctx context.Context, caller core.Caller, ref string) (cloche.Sandbox, error)
	List(ctx context.Context, caller core.Caller, o cloche.ListOptions) (cloche.SandboxList, error)
	Remove(ctx context.Context, caller core.Caller, ref string) error
	Stop(ctx context.Context, caller core.Caller, ref string, grace *time.Duration) (cloche.Sandbox, error)
	Kill(ctx context.Context, caller core.Caller, ref string) (cloche.Sandbox, error)

	Exec(ctx context.Context, caller core.Caller, ref string, req cloche.ExecRequest) (cloche.Result, error)
	ExecStream(ctx context.Context, caller core.Caller, ref string, req cloche.ExecRequest) (Stream, error)
	Run(ctx context.Context, caller core.Caller, req cloche.RunRequest) (cloche.RunResult, error)
	RunStream(ctx context.Context, caller core.Caller, req cloche.RunRequest, progress func(step string)) (cloche.Sandbox, Stream, error)
	Processes(ctx context.Context, caller core.Caller, ref string) ([]cloche.Process, error)
	Logs(ctx context.Context, caller core.Caller, ref string, o cloche.LogOptions, fn func(cloche.LogEntry) error) error

	StatFile(ctx context.Context, caller core.Caller, ref, path string) (cloche.FileInfo, error)
	ListFiles(ctx context.Context, caller core.Caller, ref, path, cursor string, limit int) (cloche.FileList, error)
	ReadFile(ctx context.Context, caller core.Caller, ref, path string, offset, length int64) (io.ReadCloser, cloche.FileInfo, error)
	WriteFile(ctx context.Context, caller core.Caller, ref, path string, mode uint32, r io.Reader) (cloche.FileInfo, error)
	MakeDir(ctx context.Context, caller core.Caller, ref, path string, mode uint32) error
	MoveFile(ctx context.Context, caller core.Caller, ref, from, to string) error
	RemoveFile(ctx context.Context, caller core.Caller, ref, path string, recursive bool) error
	TarOut(ctx context.Context, caller core.Caller, ref, path string, o cloche.TarOutOptions, w io.Writer) (cloche.TarReport, error)
	TarIn(ctx context.Context, caller core.Caller, ref, path string, o cloche.TarInOptions, r io.Reader) (cloche.TarReport, error)

	Images(ctx context.Context, caller core.Caller) (cloche.ImageList, error)
	Status(ctx context.Context, caller core.Caller) cloche.Status
	Doctor(ctx context.Context, caller core.Caller) (cloche.Doctor, error)
}

// Stream is a live exec. Close makes a Recv or Write in progress return; for an
// exec it leaves the program running, for a run it ends it and removes the
// sandbox.
type Stream interface {
	ExecID() string
	Recv() (core.Event, error)
	Write(p []byte) (int, error)
	CloseWrite() error
	Resize(rows, cols uint16) error
	Signal(name string) error
	Close() error
}

// FromCore makes a Core of core's own service.
func FromCore(s *core.Service) Core { return service{s} }

// service only turns core's concrete streams into the interface; a nil one must
// not become an interface that is not nil.
type service struct{ *core.Service }

func (s service) ExecStream(ctx context.Context, caller core.Caller, ref string, req cloche.ExecRequest) (Stream, error) {
	st, err := s.Service.ExecStream(ctx, caller, ref, req)
	if err != nil {
		return nil, err
	}
	return st, nil
}

func (s service) RunStream(ctx context.Context, caller core.Caller, req cloche.RunRequest, progress func(string)) (cloche.Sandbox, Stream, error) {
	sb, st, err := s.Service.RunStream(ctx, caller, req, progress)
	if err != nil {
		return sb, nil, err
	}
	return sb, st, nil
}
