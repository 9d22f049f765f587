package event

// Held counts the events in memory.
func Held(l *Log) int {
	l.mu.RLock()
	defer l.mu.RUnlock()
	return len(l.events)
}
