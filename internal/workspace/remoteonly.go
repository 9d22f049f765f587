//go:build darwin || windows || remoteonly

package workspace

import (
	"context"
	"os"

	"github.com/cloche-dev/cloche/api"
)

// Sandboxes run on another machine, be it a virtual one: their workspaces are volumes of
// the engine's. What has to do with files that are here is refused.

// keepsFiles says why no files of workspaces are kept on this machine; nil is that they
// are.
func keepsFiles() error {
	return api.Errorf(api.CodeUnsupported, "on this system sandboxes run on another machine, and no workspace has its files here").
		WithHint("leave shares_host_fs of the engine out, or set it to no: then the engine keeps workspaces as volumes")
}

// HardQuota: nothing here holds a workspace to bounds.
func HardQuota(string) api.Enforcement {
	return api.Enforcement{Reason: "workspaces are volumes of the engine's, on another machine"}
}

// HasProjects finds none.
func HasProjects(string) bool { return false }

// LayersUsable says why no layers can be made here.
func LayersUsable() error { return keepsFiles() }

// FindDir finds no directory of this machine's for a sandbox.
func FindDir(string, string) error { return keepsFiles() }

// SweepStaging has nothing to unmount.
func SweepStaging(string) error { return nil }

// Mounts are not looked at: this system has no list of where each filesystem is mounted.
func Mounts() ([]Mount, error) { return nil, nil }

// MountOf knows of no mount.
func MountOf(string) int { return 0 }

// Space is what a filesystem has left.
type Space struct{ FreeBytes, FreeInodes, TotalBytes int64 }

// SpaceAt asks no filesystem.
func SpaceAt(string) (Space, error) { return Space{}, keepsFiles() }

// Taken is what a private workspace takes of its disk. This system has no workspaces.
type Taken struct {
	Bounds
	Partial bool
}

// Take counts nothing that is here.
func Take(context.Context, Bounds, []*Dir, []int) (Taken, error) { return Taken{}, keepsFiles() }

// Measure measures nothing that is here.
func Measure(context.Context, *Dir, Bounds) error { return keepsFiles() }

// Dir is a directory of this machine's. None is opened for a sandbox.
type Dir struct{}

// Closing says what is closed in a directory.
type Closing int

// What may be closed. Nothing is here.
const (
	CloseNone Closing = iota
	CloseForeign
	CloseAll
)

// Closer finds nothing out.
type Closer struct{}

// CloseSockets closes nothing.
func (*Dir) CloseSockets(Closing, *Closer) {}

// StageProblem finds none, for nothing is staged.
func StageProblem(string) *api.Problem { return nil }

// OpenDir opens none.
func OpenDir(string) (*Dir, error) { return nil, keepsFiles() }

// Private makes none.
func Private(string) (*Dir, error) { return nil, keepsFiles() }

// PrivateBounded makes none.
func PrivateBounded(string, string, Bounds) (*Dir, error) { return nil, keepsFiles() }

// RemovePrivate removes a directory.
func RemovePrivate(dir string) error { return RemoveTree(dir) }

// newDir makes none.
func newDir(interface{ Close() error }, bool) (*Dir, error) { return nil, keepsFiles() }

// Path is empty.
func (*Dir) Path() string { return "" }

// ID is zero.
func (*Dir) ID() (dev, ino uint64) { return 0, 0 }

// Owner is zero.
func (*Dir) Owner() (uid, gid uint32) { return 0, 0 }

// Close has nothing to close.
func (*Dir) Close() error { return nil }

func openAgain(string) (*Dir, error) { return nil, keepsFiles() }

// File is refused.
func (*Dir) File() (*os.File, error) { return nil, keepsFiles() }

// Root is refused.
func (*Dir) Root() (*os.Root, error) { return nil, keepsFiles() }

// Stage is refused.
func (*Dir) Stage(string, bool) (*Staged, error) { return nil, keepsFiles() }

// MakeBelow is refused.
func (*Dir) MakeBelow(string, int) (*Dir, *Made, error) { return nil, nil, keepsFiles() }

// Empty is refused.
func (*Dir) Empty(context.Context) error { return keepsFiles() }

// Clear is refused.
func (*Dir) Clear() error { return keepsFiles() }

// RemoveCutWrites has nothing to remove.
func (*Dir) RemoveCutWrites(context.Context) error { return nil }

// CopyTo is refused.
func (*Dir) CopyTo(context.Context, *Layer, string, CopyLimits) (CopyReport, error) {
	return CopyReport{}, keepsFiles()
}

// FillFrom is refused.
func (*Dir) FillFrom(context.Context, string, CopyLimits) error { return keepsFiles() }

// DropLayer is refused.
func (*Dir) DropLayer(context.Context) error { return keepsFiles() }

// Staged is what an engine would mount.
type Staged struct {
	Path   string
	Closed bool
}

// Sockets finds none.
func (*Staged) Sockets(int) ([]string, error) { return nil, keepsFiles() }

// Close has nothing to unmount.
func (*Staged) Close() error { return nil }

// Made are directories that were made. There are none.
type Made struct{}

// Undo has nothing to undo.
func (*Made) Undo() error { return nil }

// Close has nothing to close.
func (*Made) Close() {}

// Layer is what a sandbox writes over a workspace. This system has no layers.
type Layer struct{}

// MakeLayer makes none.
func MakeLayer(context.Context, string, *Dir) (*Layer, error) { return nil, keepsFiles() }

// OpenLayer opens none.
func OpenLayer(string, *Dir) (*Layer, error) { return nil, keepsFiles() }

// Commit is refused.
func (*Layer) Commit(context.Context, *Dir) error { return keepsFiles() }

// Diff is refused.
func (*Layer) Diff(context.Context, *Dir) ([]api.Change, error) { return nil, keepsFiles() }

// Discard is refused.
func (*Layer) Discard(*Dir) error { return keepsFiles() }

// Stage is refused.
func (*Layer) Stage(*Dir, string) (*Staged, error) { return nil, keepsFiles() }

// Unfinished reports whether a commit is to be finished: none ever is.
func (*Layer) Unfinished() bool { return false }

// Walk is refused.
func (*Layer) Walk(context.Context, *Dir, func(api.Change) error) error { return keepsFiles() }

// Disks and projects hold workspaces to bounds, and there are none here.
const (
	projectExt = ".project"
	durable    = true
)

func makeDisk(string, Bounds, bool) error            { return keepsFiles() }
func diskInUse(string) (bool, error)                 { return false, nil }
func openDisk(string, string, bool) (*Dir, error)    { return nil, keepsFiles() }
func diskUsage(string, Bounds) (Bounds, error)       { return Bounds{}, keepsFiles() }
func (*tenant) makeProject(*record) (bool, error)    { return false, nil }
func (*tenant) openProject(*record) (*Dir, error)    { return nil, keepsFiles() }
func (*tenant) projectUsage(*record) (Bounds, error) { return Bounds{}, keepsFiles() }
func (*tenant) dropProject(string) error             { return nil }
