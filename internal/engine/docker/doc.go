// Package docker is the engine that isolates a sandbox in a container of a Docker
// daemon, or of a Podman that answers to the same calls.
//
// A sandbox is one container with one command: the agent. The container has a
// network of its own with only a loopback device, only the capabilities
// of a process of uid 0 inside, no_new_privs, the daemon's own filter of
// system calls, and its limits by the daemon's cgroups. The daemon's socket is never
// in it. What the engine makes has labels with the owner and the sandbox, and
// nothing without them is ever touched.
//
// The root filesystem is Cloche's: the image is given to the daemon once, under
// its hash, as an image of one layer. So policy, digests and what an image says of
// itself are the same as on every engine, and the daemon pulls nothing. The agent
// lies in a volume, read-only, beside a program of our own (package inner).
//
// Docker starts a command with three descriptors and no more. So package inner is
// what the container begins with: it takes the agent's configuration from standard
// input, where no inspection of the container shows it, and becomes the agent.
//
// The agent is reached by one exec for each life of this process: package inner
// again, which joins many streams over its standard input and output to the agent's
// port. The daemon need not be on this machine for that. The exec ends with its
// connection, the container does not: a later process makes another exec.
//
// A container that must not outlive this process is watched by a process of its
// own, which has it removed when this one is gone: Docker knows no parents.
package docker
