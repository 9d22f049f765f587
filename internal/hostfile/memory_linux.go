package hostfile

import "golang.org/x/sys/unix"

// Memory is how much memory this machine has; 0 where it cannot be known.
func Memory() int64 {
	var machine unix.Sysinfo_t
	if unix.Sysinfo(&machine) != nil {
		return 0
	}
	return int64(machine.Totalram) * int64(machine.Unit)
}
