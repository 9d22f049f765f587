package stage

import "github.com/cloche-dev/cloche/api"

// NotLayered is the error about a sandbox whose workspace is not layered.
func NotLayered(name string) error {
	return api.Errorf(api.CodeState, "the workspace of sandbox %s is not layered: what it writes is not kept apart", name).
		WithHint("make the sandbox with workspace.layered, on the command line --layered")
}

// MaySettle says why the layer of a workspace cannot be committed or rolled back now.
func MaySettle(info api.Sandbox) error {
	switch {
	case !info.Workspace.Layered:
		return NotLayered(info.Name)
	case info.State == api.StateStopped, info.State == api.StateLost:
		return nil
	}
	return api.Errorf(api.CodeState, "sandbox %s is %s, and its workspace is settled when it has ended", info.Name, info.State).
		WithHint("cloche stop %s; what it wrote is kept", info.Name)
}
