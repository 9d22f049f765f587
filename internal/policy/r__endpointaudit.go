package policy

import (
	"slices"

	"github.com/cloche-dev/cloche/api"
)

// captureRank orders what is recorded of requests; 0 is an unknown value.
func captureRank(s string) int {
	return slices.Index([]string{api.CaptureHeaders, api.CaptureBody}, s) + 1
}
