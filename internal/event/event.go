// Package event keeps what happened to sandboxes as a bounded list that
// survives restarts, in which each event has a number that is never used again.
// A reader that was away asks for what came after the last number it has.
package event

import (
	"strings"
	"time"
	"unicode/utf8"

	"github.com/cloche-dev/cloche/api"
)

// Options say where the list is and how much it keeps.
type Options struct {
	// Path is the file, made with mode 0600 in a directory that exists. One Log at
	// a time may have it open. Empty keeps the list in memory only.
	Path string
	// MaxEvents is how many are kept; 0 is 10 000.
	MaxEvents int
	// MaxEach is how many are kept of one sandbox, or of one tenant where an event
	// has no sandbox, so that none pushes out the others'; 0 is a fifth of
	// MaxEvents, and 1 at least.
	MaxEach int
	// MaxAge is how long; 0 is seven days.
	MaxAge time.Duration
	// Clean takes what is secret out of an event before it is cut; nil knows nothing.
	Clean func(api.Event) api.Event
}

const (
	defaultMaxEvents = 10_000
	defaultMaxAge    = 7 * 24 * time.Hour
)

// Bounds of one event in bytes, so that no sandbox can fill the list.
const (
	maxWord = 256
	maxText = 1024
	maxArgv = 1024 // of all arguments together
	// maxLine bounds a line of the file. Escapes make a text six times as long at
	// most.
	maxLine = 64 << 10
)

// bounded is e with nothing in it that is longer than an event may hold, that
// JSON cannot say, or that its publisher may still change.
func bounded(e api.Event) api.Event {
	e.Time = sane(e.Time)
	e.Kind = api.EventKind(cut(string(e.Kind), maxWord))
	for _, s := range []*string{&e.Tenant, &e.Sandbox, &e.Name, &e.Verb, &e.Rule, &e.Image} {
		*s = cut(*s, maxWord)
	}
	e.Reason = cut(e.Reason, maxText)
	e.ExpiresAt = saneCopy(e.ExpiresAt)
	e.Missed = 0
	if e.Pull != nil {
		p := *e.Pull
		p.Image, p.Layer, p.Phase = cut(p.Image, maxWord), cut(p.Layer, maxWord), api.PullPhase(cut(string(p.Phase), maxWord))
		e.Pull = &p
	}
	if e.Process == nil {
		return e
	}
	p := *e.Process
	for _, s := range []*string{&p.ExecID, &p.Name, &p.Signal, &p.LastStderr} {
		*s = cut(*s, maxWord)
	}
	p.State = api.ProcessState(cut(string(p.State), maxWord))
	p.Reason = cut(p.Reason, maxText)
	p.Argv = cutArgv(p.Argv)
	p.StartedAt = sane(p.StartedAt)
	p.ReadyAt, p.EndedAt = saneCopy(p.ReadyAt), saneCopy(p.EndedAt)
	if p.ExitCode != nil {
		code := *p.ExitCode
		p.ExitCode = &code
	}
	e.Process = &p
	return e
}

// cutMark ends what was cut.
const cutMark = "…"

func cut(s string, limit int) string {
	if len(s) > limit {
		end := limit - len(cutMark)
		for end > 0 && !utf8.RuneStart(s[end]) {
			end--
		}
		s = s[:end] + cutMark
	}
	return strings.ToValidUTF8(s, "?")
}

// cutArgv keeps the first arguments; an empty one counts too.
func cutArgv(argv []string) []string {
	var out []string
	left := maxArgv
	for _, a := range argv {
		if left <= len(cutMark) {
			return append(out, cutMark)
		}
		a = cut(a, left)
		left -= len(a) + 1
		out = append(out, a)
	}
	return out
}

// sane is t where JSON can say it, and no time otherwise.
func sane(t time.Time) time.Time {
	t = t.UTC().Round(0)
	if y := t.Year(); y < 0 || y > 9999 {
		return time.Time{}
	}
	return t
}

func saneCopy(t *time.Time) *time.Time {
	if t == nil {
		return nil
	}
	out := sane(*t)
	return &out
}
