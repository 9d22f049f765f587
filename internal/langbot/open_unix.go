//go:build unix

package langbot

import "syscall"

// noLink opens no symlink, and no FIFO that has to be waited for.
const noLink = syscall.O_NOFOLLOW | syscall.O_NONBLOCK
