// Package pidfd starts processes of this host from a thread that lives as long as the engine, gives
// each an identity that no later process can have, kills it and waits for it by a descriptor, and
// finds it again when the daemon that started it is gone.
package pidfd
