package snapshot

import (
	"cmp"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/sandbox/stage"
)

// ScopeOf returns the part of the requested scope that is possible for a sandbox, and what is
// left out and why.
func ScopeOf(info api.Sandbox, asked api.SnapshotScope) (api.SnapshotScope, []api.TarSkip, error) {
	var left []api.TarSkip
	for _, mount := range info.Mounts {
		left = append(left, api.TarSkip{Path: mount.Target, Reason: "a directory of the host"})
	}
	scope := cmp.Or(asked, api.SnapshotFiles)
	switch info.State {
	case api.StateRunning, api.StatePaused, api.StateStopped, api.StateLost:
	default:
		return scope, nil, stage.NotRunning(info)
	}
	if what := outside(info.Workspace); what != "" {
		if scope == api.SnapshotWorkspace {
			return scope, nil, api.Errorf(api.CodeState, "the workspace of sandbox %s is %s, which is in no snapshot", info.Name, what).
				WithHint("copy its files, or take a snapshot of the root")
		}
		left = append(left, api.TarSkip{Path: info.Workspace.Path, Reason: what})
		scope = api.SnapshotRoot
	}
	if scope == api.SnapshotWorkspace {
		return scope, left, nil
	}
	ended := info.State == api.StateStopped || info.State == api.StateLost
	if !ended && !info.ReadOnlyRoot {
		return scope, left, nil
	}
	if asked != "" || scope == api.SnapshotRoot {
		if ended {
			return scope, nil, RootGone(info)
		}
		return scope, nil, api.Errorf(api.CodeState, "the root of sandbox %s is read-only: nothing was changed in it", info.Name).
			WithHint("take a snapshot of the workspace")
	}
	reason := "nothing was changed: it is read-only"
	if ended {
		reason = "it can be read only while the sandbox runs"
	}
	return api.SnapshotWorkspace, append(left, api.TarSkip{Path: "/", Reason: reason}), nil
}

// outside says what a workspace is that is in no snapshot; empty is another.
func outside(ws api.Workspace) string {
	switch {
	case ws.Dir != "":
		return "a directory of the host"
	case ws.Volume:
		return "a volume of the engine's"
	}
	return ""
}

// FitsRoot reports whether a sandbox can start from the root of a snapshot. The root belongs to one
// image, by digest. The host image is the machine's present files, and most of it, which its mounts
// show, has no digest: changes of its root apply on top of that.
func FitsRoot(snap api.Snapshot, sb api.Sandbox) bool {
	if snap.Image == api.DefaultImage {
		return sb.Image == api.DefaultImage
	}
	return sb.ImageDigest == snap.ImageDigest
}

// RootGone is the error about the root of a sandbox that has ended.
func RootGone(info api.Sandbox) error {
	return api.Errorf(api.CodeState, "sandbox %s is %s, and its root can be read only while it runs", info.Name, info.State).
		WithHint("cloche start %s; what it wrote to its workspace can be read now", info.Name)
}
