// Package oci is the engine that has an OCI runtime make its sandboxes: runc, crun, or
// another binary with the same commands.
//
// The runtime is given a bundle whose root is whole. This package makes it, in a mount
// namespace that ends with the create: the image, its owners mapped to the sandbox's
// own range of ids, a writable layer in memory, the agent, the mounts of the plan. What
// the runtime mounts is what the kernel gives each sandbox: /proc, /sys, /dev. So no
// path of the host is in the bundle, and nothing is left mounted, in whatever order processes die.
//
// The user namespace and the network namespace are made before, by a process that ends
// as soon as they are held, and the runtime is told to enter them: so the link's device
// is there before anything runs inside.
//
// The first process is the agent. It gets its descriptors through the runtime, listens
// on a socket in the plan's directory, and outlives the daemon: it is known by its
// number and the time of its start, and everything else dies with it. The runtime is
// asked once more when the sandbox ends, to take back what it made; whether or not it
// answers, the engine removes what it knows of by itself.
//
// What a runtime prints is foreign: it is read with a bound and within a deadline, and
// a number of a process is believed only if that process is in the user namespace that
// was made for the sandbox.
package oci
