// Package cgroup makes the cgroups of sandboxes, of both versions and of machines
// that have both: it finds the hierarchies that can be used (those that systemd hands to
// a user among them), makes a group for each instance with its limits, has processes
// born in it, reads what it uses, freezes, kills and removes it. A group is known by its
// directories, which are written down, so that a later daemon finds it again wherever it
// has its own place.
package cgroup
