// Package snapshot keeps snapshots of files: each is a directory with its record,
// the tar of a root's changes and a copy of a workspace. A snapshot is seen whole or
// not at all, whatever dies when.
package snapshot
