//go:build linux

package audit

// SetStep has fn called before each step of a write.
func SetStep(l *Log, fn func(name string)) { l.step = fn }
