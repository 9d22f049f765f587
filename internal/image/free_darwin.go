package image

import "golang.org/x/sys/unix"

// free gives nothing back: what a part of a file takes stays taken here.
func free(int, int64, int64) error { return unix.EOPNOTSUPP }
