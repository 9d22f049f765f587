package engine

// KnownCPUMS returns the CPU time in milliseconds. A zero is what an engine cannot tell, because an instance
// that runs has used some: then it is nil.
func (s Stat) KnownCPUMS() *int64 {
	if ms := s.CPU.Milliseconds(); s.CPU > 0 {
		return &ms
	}
	return nil
}

// KnownMemory returns the memory in bytes, or nil if the engine cannot tell.
func (s Stat) KnownMemory() *int64 {
	if n := s.MemoryBytes; n > 0 {
		return &n
	}
	return nil
}
