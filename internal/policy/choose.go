package policy

import "github.com/cloche-dev/cloche/api"

// ChooseEngine returns the engine that a request for "auto" would get now, or
// the error that it would get. The report is filled in as far as the choice is
// known also when the engine is not usable.
func ChooseEngine(caller Caller, rules Rules, reports []api.EngineReport) (api.EngineReport, error) {
	d := &decision{facts: Facts{Engines: reports}, caller: caller, rules: rules}
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

// EngineNamed says whether the operator names one engine, so that no other is chosen
// where that one cannot be used.
func EngineNamed(rules Rules) bool { return rules.Engine != "" && rules.Engine != engineAuto }
