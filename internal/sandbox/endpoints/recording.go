package endpoints

import (
	"errors"
	"strings"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/endpoint/recording"
)

// recordings opens what an endpoint records or replays.
func (t *Table) recordings(spec api.Endpoint) (record *recording.Writer, play *recording.Player, err error) {
	name, replays := strings.CutPrefix(spec.Target, api.TargetReplay)
	switch {
	case !replays && spec.Record == "":
		return nil, nil, nil
	case t.service.o.Recordings == nil:
		return nil, nil, api.Errorf(api.CodeUnsupported, "there are no recordings here")
	case replays:
		how := api.EndpointReplay{}
		if spec.Replay != nil {
			how = *spec.Replay
		}
		play, err = t.service.o.Recordings.Play(t.names.Tenant, name, how)
	default:
		record, err = t.service.o.Recordings.Record(t.names.Tenant, spec.Record, t.names.ID, spec.Name)
	}
	if err == nil {
		return record, play, nil
	}
	if _, ok := errors.AsType[*api.Error](err); ok {
		return nil, nil, err
	}
	return nil, nil, api.Errorf(api.CodeInternal, "the recording of endpoint %s cannot be opened", spec.Name).WithCause(err)
}

// recordingOf is what of an endpoint is open for as long as it is.
func recordingOf(e api.Endpoint) string {
	if strings.HasPrefix(e.Target, api.TargetReplay) {
		return e.Target
	}
	return e.Record
}
