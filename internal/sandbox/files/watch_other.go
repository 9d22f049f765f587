//go:build !linux

package files

import (
	"context"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/agent"
)

// watchHost watches nothing: no directory of this system is mounted.
func (f *Files) watchHost(context.Context, Sandbox, *agent.Client, api.FilePlace, api.WatchOptions, func(api.FileChange) error) (watched bool, err error) {
	return false, nil
}
