package sandbox

import "github.com/cloche-dev/cloche/api"

// Placed is a state on an engine.
type Placed struct {
	State  api.State
	Engine string
}

// Tally counts the sandboxes on record by their state and engine, and by the name of
// their endpoint the requests that go on.
func (m *Manager) Tally() (states map[Placed]int, active map[string]int64) {
	states, active = map[Placed]int{}, map[string]int64{}
	for _, s := range m.all() {
		info := s.snapshot()
		states[Placed{info.State, info.Engine}]++
		for _, e := range s.endpoints.open() {
			active[e.name] += e.Status().Counters.Active
		}
	}
	return states, active
}
