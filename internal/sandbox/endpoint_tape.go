package sandbox

import (
	"errors"
	"strings"

	"github.com/cloche-dev/cloche"
	"github.com/cloche-dev/cloche/internal/bridge/tape"
)

// tapes opens what an endpoint records or replays.
func (m *Manager) tapes(s *live, spec cloche.Endpoint) (record *tape.Writer, play *tape.Player, err error) {
	name, replays := strings.CutPrefix(spec.Target, cloche.TargetReplay)
	switch {
	case !replays && spec.Record == "":
		return nil, nil, nil
	case m.opts.Recordings == nil:
		return nil, nil, cloche.Errorf(cloche.CodeUnsupported, "there are no recordings here")
	case replays:
		how := cloche.EndpointReplay{}
		if spec.Replay != nil {
			how = *spec.Replay
		}
		play, err = m.opts.Recordings.Play(s.tenant, name, how)
	default:
		record, err = m.opts.Recordings.Record(s.tenant, spec.Record, s.id, spec.Name)
	}
	if err == nil {
		return record, play, nil
	}
	if _, ok := errors.AsType[*cloche.Error](err); ok {
		return nil, nil, err
	}
	return nil, nil, cloche.Errorf(cloche.CodeInternal, "the recording of endpoint %s cannot be opened", spec.Name).WithCause(err)
}

// taped is what of an endpoint is open for as long as it is.
func taped(e cloche.Endpoint) string {
	if strings.HasPrefix(e.Target, cloche.TargetReplay) {
		return e.Target
	}
	return e.Record
}
