package stage

import "github.com/cloche-dev/cloche/api"

// MayStart says why a sandbox cannot be started. recorded means that its record says what it was created with.
func MayStart(info api.Sandbox, teardown Teardown, recorded bool) error {
	switch {
	case teardown != TeardownNone:
		return api.Errorf(api.CodeState, "sandbox %s is being removed", info.Name)
	case info.State.Held():
		return NotRunning(info)
	case info.State != api.StateStopped && info.State != api.StateLost:
		return api.Errorf(api.CodeState, "sandbox %s is %s, and only one that has ended can be started", info.Name, info.State).
			WithHint("try again when it is stopped")
	case info.Transient:
		return api.Errorf(api.CodeState, "sandbox %s is transient: it is removed, and not started again", info.Name).WithHint("make another")
	case !recorded:
		return api.Errorf(api.CodeUnsupported, "sandbox %s was made by an older cloche, which did not record what a start needs", info.Name).
			WithHint("copy its files with `cloche cp`, or take a snapshot of its workspace, and make another")
	}
	return nil
}

// MaySave says why the memory of a sandbox cannot be saved. The memory of a suspended one is saved. recorded is as in MayStart.
func MaySave(info api.Sandbox, recorded bool) error {
	switch {
	case info.State == api.StateSuspended:
		return nil
	case info.State != api.StateRunning:
		return NotRunning(info)
	case info.Transient:
		return api.Errorf(api.CodeState, "sandbox %s is transient: it ends with the connection that holds it", info.Name).
			WithHint("create one that is not transient")
	case !recorded:
		return api.Errorf(api.CodeUnsupported, "sandbox %s was made by an older cloche, which did not record what a resume needs", info.Name).WithHint("make another")
	}
	return nil
}

// TakeUser gives processes the image's user if the request names none. A daemon without privilege has sandboxes with one id:
// there an image that wants another user gets root, which has access to all of the image's files, and the record says so.
func TakeUser(info *api.Sandbox, wanted string, rootless bool) {
	if info.User != "" {
		return
	}
	info.User = wanted
	switch wanted {
	case "root", "0", "0:0", "root:root":
		return
	}
	if rootless {
		info.User = "root"
		info.Unenforced = append(info.Unenforced, api.Unenforced{
			Field:  "user",
			Reason: "the image wants another user, and a rootless sandbox has one id: its processes are root, which has no rights on the host, unless a user is named",
		})
	}
}
