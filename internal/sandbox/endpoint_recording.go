package sandbox

import (
	"errors"
	"strings"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/endpoint/recording"
)

// recordings opens what an endpoint records or replays.
func (m *Manager) recordings(s *live, spec api.Endpoint) (record *recording.Writer, play *recording.Player, err error) {
	name, replays := strings.CutPrefix(spec.Target, api.TargetReplay)
	switch {
	case !replays && spec.Record == "":
		return nil, nil, nil
	case m.opts.Recordings == nil:
		return nil, nil, api.Errorf(api.CodeUnsupported, "there are no recordings here")
	case replays:
		how := api.EndpointReplay{}
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
	if _, ok := errors.AsType[*api.Error](err); ok {
		return nil, nil, err
	}
	return nil, nil, api.Errorf(api.CodeInternal, "the recording of endpoint %s cannot be opened", spec.Name).WithCause(err)
}

// taped is what of an endpoint is open for as long as it is.
func taped(e api.Endpoint) string {
	if strings.HasPrefix(e.Target, api.TargetReplay) {
		return e.Target
	}
	return e.Record
}
