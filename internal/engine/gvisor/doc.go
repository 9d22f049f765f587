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
// Limits of memory and processor are host cgroups beside the daemon's own, of
// version 1 or 2: one for the instance, and in it one for the stubs, so that a
// program that takes too much dies alone. What is written to the root is bounded
// by gVisor. The number of processes is the agent's to bound, by a cgroup of the
// sandbox's own kernel: a limit of the host's would crash the sentry.
//
// A sentry is started parked: it sets up all that is the same for every sandbox, gives
// up its capabilities, and waits on a socket for a command line and descriptors. So a
// daemon can have one ready. It lives in a cgroup of its own, which becomes the
// sandbox's and gets its limits before the sentry is told anything; it is used for one
// sandbox and ends with its socket, that is with the daemon, when it is used for none.
//
// A pool has sandboxes that have booted, and whose agent waits for its configuration. A
// plan of the same kind takes one: a call in the sentry, which package role serves on a
// socket of its own, gives it mounts, rules, a network, its title and its host name; then
// the agent is told. The mounts are attached to the gofer that it has (see slots). One
// that fails on the way is destroyed, and the plan gets a sandbox without the pool.
//
// Without mounts nothing stands between the sentry and the host but its
// descriptors. With mounts, the gofer opens files for it, as the user of the
// daemon, in a mount namespace that holds the mounts only. The sentry never opens
// a path of the host itself (directfs is off): that would take capabilities.
//
// A sandbox is paused by its sentry, which stops its tasks and goes on to answer; a
// note beside its socket says how far that has come, so a daemon that dies in
// between loses nothing. The freezer of a cgroup is not used: see sentryBrake.
//
// What is recorded of a sandbox names the machine's boot, because process numbers
// begin anew with each, and the version of gVisor, because the calls of a control
// server are no stable interface: of a sentry of another version only the way to
// the agent is used. The roles are executed from a copy of the executable that is
// kept under its hash while a sandbox uses it.
//
// Killing needs no help from inside: the sentry is the init of its pid
// namespace, so one SIGKILL through its pidfd ends everything.
package gvisor
