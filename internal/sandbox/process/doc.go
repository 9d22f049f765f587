// Package process runs programs in sandboxes. A managed process has a record and a log that survive
// the daemon; an exec belongs to its caller. A [Table] has the processes of one sandbox, a [Runner]
// what all of them share.
package process
