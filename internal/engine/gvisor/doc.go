// Package gvisor is the engine that isolates a sandbox with gVisor, which is
// compiled into this executable.
//
// A sandbox is one sentry process (this executable again, in the role "boot")
// with its systrap stubs, and one gofer process when the plan has mounts of the
// host. Neither is the daemon's child in any sense that matters: they have
// their own sessions and cgroups and live on when the daemon dies, unless the
// plan says DieWithParent. The root filesystem is an EROFS image that the
// sentry reads through one descriptor; writes go to an unnamed file beside it.
//
// The sentry runs as nobody (as root) or as the caller (rootless) in user, pid,
// mount, ipc, uts and network namespaces of its own, in an empty root
// directory, without any capability and under gVisor's seccomp filter. Its
// network is a loopback device that exists in the sentry only.
//
// Killing needs no help from inside: the sentry is the init of its pid
// namespace, so one SIGKILL through its pidfd ends everything.
package gvisor
