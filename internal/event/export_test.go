package event

// Len counts the events in memory.
func Len(l *Log) int {
	l.mu.RLock()
	defer l.mu.RUnlock()
	return len(l.events)
}

// Line is an event as a line of the file.
func Line(v any) ([]byte, error) { return appendLine(nil, v) }

// MaxLine is longer than a line may be.
const MaxLine = maxLine
