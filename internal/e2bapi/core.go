package e2bapi

import (
	"context"
	"net"
	"net/netip"
	"time"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/core"
	"github.com/cloche-dev/cloche/internal/e2bapi/codeinterpreter"
	"github.com/cloche-dev/cloche/internal/image/build"
)

// Core is the part of package core that the control plane and the forwarding of ports need.
type Core interface {
	Callers
	Sandboxes
	Snapshots
	Images
	Programs
	codeinterpreter.Core
	Ports
	Logs(ctx context.Context, caller core.Caller, ref string, o api.LogOptions, fn func(api.LogEntry) error) error
}

// Ports are connections to ports of sandboxes.
type Ports interface {
	DialPort(ctx context.Context, caller core.Caller, ref string, port int) (net.Conn, error)
	// AuthorizePublish checks whether ports can be served at an address of this machine.
	AuthorizePublish(at netip.Addr) error
}

// Sandboxes are core's verbs on sandboxes.
type Sandboxes interface {
	Create(ctx context.Context, caller core.Caller, spec api.SandboxSpec, progress func(step string)) (api.Sandbox, error)
	Get(ctx context.Context, caller core.Caller, ref string) (api.Sandbox, error)
	Delete(ctx context.Context, caller core.Caller, ref string) (api.Sandbox, error)
	Extend(ctx context.Context, caller core.Caller, ref string, x api.Extension) (api.Sandbox, error)
	Pauses
	Stats(ctx context.Context, caller core.Caller, ref string) (api.SandboxStats, error)
	ReplaceEgress(ctx context.Context, caller core.Caller, ref string, p api.EgressPolicy) (api.EgressRules, error)
}

// Pauses are core's verbs that hold a sandbox and let it go on, also more than once.
type Pauses interface {
	Fork(ctx context.Context, caller core.Caller, ref string, req api.ForkRequest) (api.ForkResult, error)
	Pause(ctx context.Context, caller core.Caller, ref string) (api.Sandbox, error)
	Suspend(ctx context.Context, caller core.Caller, ref string) (api.Sandbox, error)
	Resume(ctx context.Context, caller core.Caller, ref string) (api.Sandbox, error)
	Stop(ctx context.Context, caller core.Caller, ref string, grace *time.Duration) (api.Sandbox, error)
	StartSandbox(ctx context.Context, caller core.Caller, ref string, progress func(step string)) (api.Sandbox, error)
}

// Snapshots are core's verbs on snapshots of files.
type Snapshots interface {
	CreateSnapshot(ctx context.Context, caller core.Caller, ref string, req api.SnapshotRequest) (api.Snapshot, error)
	Snapshots(ctx context.Context, caller core.Caller) (api.SnapshotList, error)
	GetSnapshot(ctx context.Context, caller core.Caller, ref string) (api.Snapshot, error)
	RemoveSnapshot(ctx context.Context, caller core.Caller, ref string) error
}

// Images are core's verbs on images.
type Images interface {
	Images(ctx context.Context, caller core.Caller) (api.ImageList, error)
	InspectImage(ctx context.Context, caller core.Caller, ref string) (api.Image, error)
	RemoveImage(ctx context.Context, caller core.Caller, ref string) error
	TagImage(ctx context.Context, caller core.Caller, ref, name string) (api.Image, error)
	BuildPlan(ctx context.Context, caller core.Caller, r build.Request, spec api.BuildSandbox, tell func(api.BuildEvent)) (api.Image, error)
}

// Programs run the commands of templates.
type Programs interface {
	StartProcess(ctx context.Context, caller core.Caller, ref string, spec api.ProcessSpec) (api.Process, error)
	Exec(ctx context.Context, caller core.Caller, ref string, req api.ExecRequest) (api.Result, error)
}

// Callers names callers.
type Callers interface {
	// Authenticate returns the caller of an API key. live ends when the key does.
	Authenticate(token string) (caller core.Caller, live context.Context, err error)
	// CallerOfKey returns the caller of a key that is still valid, by the key's ID.
	CallerOfKey(id string) (core.Caller, error)
	// Admit is called once for each request, before anything else.
	Admit(ctx context.Context, caller core.Caller, verb core.Verb) error
}
