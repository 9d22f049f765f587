package policy

import (
	"strconv"

	"github.com/cloche-dev/cloche/api"
)

// Limits of a request. The limits of strings follow execve: 128 KiB for each string, including the
// final NUL.
const (
	maxEnvName   = 256
	maxImageName = 512
)

func nameHint() string {
	return "use 1 to " + strconv.Itoa(api.MaxNameLen) + " of a-z, 0-9, '-', '_' and '.', beginning with a letter or digit"
}

func alnum(c byte) bool {
	return c >= '0' && c <= '9' || c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z'
}
