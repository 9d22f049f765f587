// Package hostfacts collects what policy must know about this machine: directories and mounts that a
// request names, private files in them, and the kernel.
package hostfacts
