//go:build linux

package pidfd

// Run is what the first Do starts, on the caller's thread.
func (s *Spawner) Run() { s.start.Do(s.run) }
