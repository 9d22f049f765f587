package sandbox

import "github.com/cloche-dev/cloche"

// Tally counts the sandboxes on record by their state, and by the name of their
// endpoint the requests that go on.
func (m *Manager) Tally() (states map[cloche.State]int, active map[string]int64) {
	states, active = map[cloche.State]int{}, map[string]int64{}
	for _, s := range m.all() {
		states[s.snapshot().State]++
		for _, e := range s.endpoints.open() {
			active[e.name] += e.Status().Counters.Active
		}
	}
	return states, active
}
