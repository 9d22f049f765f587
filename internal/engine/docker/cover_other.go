//go:build !linux

package docker

import (
	"context"

	"github.com/moby/moby/api/types/system"
)

// covers: a daemon beside this machine has containers of another kernel.
func (*Engine) covers(*daemon, system.Info) bool { return false }

func (*creation) cover(context.Context, string) error { return nil }
