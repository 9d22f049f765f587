package confine

import "golang.org/x/sys/unix"

const (
	architecture = "arm64"
	auditArch    = unix.AUDIT_ARCH_AARCH64
	// foreign is where the numbers of another set of calls begin that is told by them
	// alone; 0 without another set.
	foreign = 0
)

// native are the calls that this architecture alone has, of those that programs may make.
var native = [...]named{}

// nativeModes are those of this architecture alone.
var nativeModes = [...]modeCall{}
