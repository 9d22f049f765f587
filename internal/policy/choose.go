package policy

import (
	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/policy/rules"
)

// ChooseEngine returns the engine that a request for "auto" would get now, or the error that it
// would get. If the engine is not usable, the report is still filled in as far as the choice is
// known.
func ChooseEngine(caller Caller, set rules.Rules, reports []api.EngineReport) (api.EngineReport, error) {
	d := &decision{facts: Facts{Engines: reports}, caller: caller, rules: set}
	chosen, err := d.autoEngine()
	if err == nil {
		err = d.takeEngine(chosen)
	}
	if err != nil {
		if chosen.Name == "" && len(reports) > 0 {
			chosen.Name = reports[0].Name
		}
		return chosen, err
	}
	return chosen, nil
}

// EngineNamed reports whether the operator names one engine. Then no other engine is chosen if that
// one is not usable.
func EngineNamed(set rules.Rules) bool { return set.Engine != "" && set.Engine != engineAuto }
