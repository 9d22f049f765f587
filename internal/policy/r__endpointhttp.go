package policy

import (
	"cmp"
	"slices"

	"github.com/cloche-dev/cloche/api"
)

// filterStrength orders filters. A negative value is an unknown filter.
func filterStrength(f string) int {
	return slices.Index([]string{api.BodyFilterOff, api.BodyFilterStrip, api.BodyFilterRefuse}, cmp.Or(f, api.BodyFilterOff))
}
