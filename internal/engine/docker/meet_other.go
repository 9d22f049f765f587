//go:build !linux

package docker

import (
	"context"

	"github.com/moby/moby/api/types/system"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/engine"
)

// egress: the containers are on another machine.
func (e *Engine) egress(*daemon, system.Info) api.Enforcement {
	return api.Enforcement{Reason: "the containers are on another machine, whose network namespaces cannot be entered from here"}
}

// meeting is where a container fetches a link. This system has no links.
type meeting struct{}

func (c *creation) meet(context.Context, string) (*meeting, error) { return nil, errNoLink }

func (*meeting) hand(*engine.Link) error { return errNoLink }

func (*meeting) close() {}

var errNoLink = api.Errorf(api.CodeUnsupported, "containers on another machine have no network link")
