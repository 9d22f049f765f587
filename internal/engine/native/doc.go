// Package native is the engine that isolates a sandbox by the host's own kernel.
//
// A sandbox is its agent, the first process of a pid namespace, and what that starts.
// Nothing stands between the engine and the agent: a child that shares this process's
// memory is forked into all namespaces at once, makes a list of system calls that was
// written for it before (mounts, devices, identity, descriptors), the last of which
// executes the agent. So there is no helper program, no copy of the daemon's page
// tables and no runtime to start twice. See child.
//
// The child waits until its ids are mapped. As root each sandbox has a range of ids of
// its own, and the engine makes the mounts itself, detached, with their owners mapped
// likewise; the child only attaches them, after it has left the host's root. Without
// privileges the child makes the mounts, of what the daemon's user can reach.
//
// The agent listens on a socket in the plan's directory, which outlives the daemon.
// What it starts is confined by itself, see package confine, and joins the groups that
// limit it by descriptors that it was given: on cgroups of version 1, where it cannot
// see a hierarchy. On version 2 it has the instance's group and makes its own in it.
//
// Killing needs no help from inside: the agent is the init of its pid namespace, so
// one SIGKILL through its pidfd ends everything. Mounts, devices and the network go
// with their namespaces; what is left to remove are the cgroup and the record.
package native
