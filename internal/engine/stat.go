package engine

import "github.com/cloche-dev/cloche/api"

// KnownCPUMS returns the CPU time in milliseconds. A zero is what an engine cannot tell, because an instance
// that runs has used some: then it is nil.
func (s Stat) KnownCPUMS() *int64 {
	if s.CPU <= 0 {
		return nil
	}
	ms := s.CPU.Milliseconds()
	return &ms
}

// KnownMemory returns the memory in bytes, or nil if the engine cannot tell.
func (s Stat) KnownMemory() *int64 { return Known(s.MemoryBytes) }

// Known returns a number of bytes that is never 0 when it is measured, or nil for 0.
func Known(bytes int64) *int64 {
	if bytes <= 0 {
		return nil
	}
	return &bytes
}

// MemoryParts returns the memory of an instance by process, with what its agent measured of itself, or nil if
// nothing is known. The instance may be nil.
func MemoryParts(inst Instance, agentBytes *int64) *api.MemoryParts {
	var parts api.MemoryParts
	if r, ok := inst.(MemoryReporter); ok {
		parts = r.MemoryParts()
	}
	parts.AgentBytes = agentBytes
	if parts == (api.MemoryParts{}) {
		return nil
	}
	return &parts
}
