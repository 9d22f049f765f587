// Package image makes the root filesystems that sandboxes start from, as EROFS
// images without inline data: the curated view of this machine's own tools that
// is called host, images of registries, archives and directories, and the small
// image that carries the agent.
package image

import (
	"path"

	"github.com/cloche-dev/cloche/api"
)

// HostHint is the sentence that belongs to the error about a program which is
// not in a sandbox made from the host image.
const HostHint = `image "host" shows this machine's own tools: install the program below /usr on the machine, or bring it in a mount`

// Rootfs is a resolved image: all that a sandbox needs in order to start from
// it. Its paths are valid until Sweep removes them.
type Rootfs struct {
	// Ref is the reference as it was asked for.
	Ref string `json:"ref"`
	// Image is the path of an EROFS image on this machine.
	Image string `json:"image"`
	// Digest identifies the image: of host it is the digest of the file at Image,
	// which says nothing about what Mounts show; of others the digest of the manifest.
	Digest string `json:"digest"`
	// Index is the digest of the list of platforms that it was chosen from.
	Index string `json:"index,omitempty"`
	// SizeBytes is the size of the file at Image.
	SizeBytes int64 `json:"size_bytes"`
	// Mounts are directories of this machine, each to be mounted read-only at the
	// same path inside, in this order.
	Mounts []Mount `json:"mounts,omitempty"`
	// Masks are directories inside Mounts that must not be seen: each is to be
	// covered with an empty memory filesystem after Mounts are made.
	Masks []string `json:"masks,omitempty"`
	// Env is the environment of every process.
	Env map[string]string `json:"env,omitempty"`
	// User runs processes when the request names none.
	User string `json:"user"`
	// Config is what the image says about how it wants to be run; nil for host.
	Config *api.ImageConfig `json:"config,omitempty"`
	// MissingHint belongs to the error about a program that is not there.
	MissingHint string `json:"missing_hint,omitempty"`
}

// WorkingDir is where the image wants its processes to work. It is empty if the image says nothing that
// means anything.
func (r Rootfs) WorkingDir() string {
	if r.Config == nil || !path.IsAbs(r.Config.WorkingDir) {
		return ""
	}
	if dir := path.Clean(r.Config.WorkingDir); dir != "/" {
		return dir
	}
	return ""
}

// Mount is a directory of this machine, to be mounted read-only.
type Mount struct {
	Source string `json:"source"`
	Target string `json:"target"`
}

// Need is what a sandbox wants of a root filesystem.
type Need struct {
	// MountPoints are the absolute paths at which something will be mounted.
	MountPoints []string
	// ReadOnlyRoot: nothing can make a missing mount point later, so the image
	// has to hold all of them.
	ReadOnlyRoot bool
}
