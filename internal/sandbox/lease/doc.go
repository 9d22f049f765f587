// Package lease counts the time that a sandbox may live: its lifetime, and how long it may be idle. It has no
// clock and no goroutine; the caller gives the time and guards it.
package lease
