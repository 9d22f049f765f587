package sandbox

import (
	"fmt"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/sandbox/stage"
)

// move changes the state, or says why it cannot. The caller holds s.mu.
func (s *live) move(to api.State, reason string) error {
	if !stage.MayMove(s.info.State, to) {
		return api.Errorf(api.CodeState, "sandbox %s is %s and cannot become %s", s.info.Name, s.info.State, to)
	}
	s.info.State, s.info.Reason = to, reason
	return nil
}

// check returns an error if the State and the stages of a sandbox are an illegal combination. The
// caller holds s.mu.
func (s *live) check() error {
	if stage.Legal(s.info.State, s.making, s.teardown) {
		return nil
	}
	return fmt.Errorf("sandbox %s is %q at stage %d of its creation and stage %d of its teardown", s.id, s.info.State, s.making, s.teardown)
}
