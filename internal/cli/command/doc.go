// Package command is what the commands of the command line share: the streams and flags of
// one call (CLI), the connection to the daemon, parsing of arguments, output in every form,
// exit statuses, and the sessions that connect a command or a process in a sandbox with the
// streams of this process.
package command
