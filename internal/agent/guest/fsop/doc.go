// Package fsop carries out the file operations of the agent: files, directories, and imports and
// exports of tar archives. An atomic import is put together beside the target's files and moved
// into place with a journal, which the next import reads after a crash.
package fsop
