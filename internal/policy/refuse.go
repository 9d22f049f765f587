package policy

import (
	"github.com/cloche-dev/cloche/api"
)

// unsupported returns the error for something that this build or engine cannot do.
func unsupported(field, format string, args ...any) *api.Error {
	e := api.Errorf(api.CodeUnsupported, format, args...)
	e.Field = field
	return e
}
