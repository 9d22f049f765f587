// Package role is the program of a sandbox's own processes on gVisor: the sentry and the gofer.
//
// A guard is what a sentry does beyond gVisor's own for what is covered by
// mounts, and for rules on paths.
//
// In every sentry it keeps the mounts of the sandbox's first mount namespace as they
// are: a program in a user namespace of its own cannot take them away, mount on them,
// or use what is below them as a layer of an overlay. It makes these calls itself,
// with what it has resolved once.
//
// In a sentry with rules it also answers EACCES where a rule is the reason, and says
// so to the engine. This part enforces nothing, with one exception (extended
// attributes, where gVisor does not ask whether a mount is read-only). A rule is a
// mount in the sentry's file system, and that refuses, with the errors that mounts
// have: EROFS, EXDEV, EBUSY. The guard stands behind the system calls that take a
// path, looks at those that failed, and asks the same file system what the path was.
// What a program can win by changing a path in that moment is another error number
// and a misleading line.
package role
