package policy

import (
	"strings"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/policy/rules"
)

// cleanRecording checks the recording settings.
func cleanRecording(field string, e *api.Endpoint) *api.Error {
	replays := strings.HasPrefix(e.Target, api.TargetReplay)
	switch one := under(field, "record"); {
	case e.Record == "":
	case !api.ValidName(e.Record):
		return api.Invalid(one, "%s %s cannot name a recording", one, rules.Quote(e.Record)).WithHint("use 1 to 64 of a-z, 0-9, '-', '_' and '.', beginning with a letter or digit")
	case replays || e.Raw():
		return api.Invalid(one, "%s is for a target that speaks HTTP, and %s does not or is a recording itself", one, rules.Quote(e.Target)).WithHint("leave it out")
	}
	if e.Replay == nil {
		return nil
	}
	if one := under(field, "replay"); !replays {
		return api.Invalid(one, "%s is for the target of a recording, and %s is not one", one, rules.Quote(e.Target)).WithHint("leave it out, or write replay:NAME as the target")
	}
	if one, m := under(field, "replay.match"), e.Replay.Match; m != "" && m != api.ReplayByDigest && m != api.ReplayByOrder {
		return api.Invalid(one, "%s is %s", one, rules.Quote(m)).WithHint("write digest or order")
	}
	return nil
}
