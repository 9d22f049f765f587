// Package sandbox has the commands of sandboxes: run and create with their flags, the life of a
// sandbox, copies of files, and the file tools.
package sandbox
