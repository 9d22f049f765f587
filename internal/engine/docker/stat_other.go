//go:build !linux

package docker

import (
	"errors"

	"github.com/cloche-dev/cloche/internal/engine"
)

// groups: the containers are on another machine.
type groups struct{}

func findGroups(int, string) (groups, bool) { return groups{}, false }

func (groups) stat() (engine.Stat, error) {
	return engine.Stat{}, errors.New("the containers are on another machine")
}
