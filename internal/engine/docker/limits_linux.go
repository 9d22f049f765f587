package docker

import (
	"github.com/moby/moby/api/types/container"
	"golang.org/x/sys/unix"

	"github.com/cloche-dev/cloche/internal/engine/hostrootfs"
)

// limits are those of each process. A daemon's own choice may be more than it is
// itself allowed, and then it can start nothing: Podman's is, under a service manager
// that bounds it. A daemon of this machine is taken to be allowed what we are.
func limits(here bool) []*container.Ulimit {
	if !here {
		return nil
	}
	var out []*container.Ulimit
	for _, l := range []struct {
		name string
		kind int
		want uint64
	}{{"nofile", unix.RLIMIT_NOFILE, 1 << 19}, {"nproc", unix.RLIMIT_NPROC, 1 << 15}} {
		var own unix.Rlimit
		if unix.Getrlimit(l.kind, &own) != nil {
			continue
		}
		most := int64(min(own.Max, l.want))
		out = append(out, &container.Ulimit{Name: l.name, Soft: most, Hard: most})
	}
	// What the kernel counts by user is root's of the host in most containers: a part of it.
	for _, l := range hostrootfs.UserLimits() {
		name := map[int]string{unix.RLIMIT_SIGPENDING: "sigpending", unix.RLIMIT_MSGQUEUE: "msgqueue"}[l.Kind]
		out = append(out, &container.Ulimit{Name: name, Soft: int64(l.Most), Hard: int64(l.Most)})
	}
	return out
}
