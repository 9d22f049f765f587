// Package guest is the program inside every sandbox, its first process: it
// starts processes, keeps their output and their exit records, and reads and
// writes files, as the host tells it over an authenticated connection.
//
// It is stronger than anything that it starts. A process has a capability set
// strictly smaller than the agent's, no_new_privs, none of its descriptors, and
// where the kernel does not guard a first process by itself, no uid in common
// with it. Agent and processes need nothing from the image.
package guest
