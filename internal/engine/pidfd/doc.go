// Package pidfd is what engines share whose sandboxes are processes of this host:
// such a process is started from a thread that lives as long as the engine, has a name
// that no later process can have, is killed and waited for by a descriptor, and is
// found again, by what was written down of it, when the daemon that started it is gone.
package pidfd
