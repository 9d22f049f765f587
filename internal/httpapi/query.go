package httpapi

import (
	"maps"
	"math"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/cloche-dev/cloche/api"
)

// maxPath is Linux's.
const maxPath = 4096

// query reads the parameters of a request strictly: each is read once, and a parameter that is
// never read is unknown. The first error is kept for end.
type query struct {
	left url.Values
	err  error
}

func queryOf(r request) *query {
	v, err := url.ParseQuery(r.URL.RawQuery)
	if err != nil {
		return &query{err: api.Invalid("query", "the query of the URL is malformed").WithHint("percent-encode it")}
	}
	return &query{left: v}
}

// end reports what was wrong with any parameter.
func (q *query) end() error {
	if q.err == nil && len(q.left) > 0 {
		name := slices.Sorted(maps.Keys(q.left))[0]
		q.err = api.Invalid(clip(name, 80), "there is no query parameter %q here", clip(name, 80))
	}
	return q.err
}

func (q *query) fail(name, format string, args ...any) *api.Error {
	e := api.Invalid(name, format, args...)
	if q.err == nil {
		q.err = e
	}
	return e
}

// all takes every value of a parameter.
func (q *query) all(name string) []string {
	v := q.left[name]
	delete(q.left, name)
	return v
}

// str takes a parameter that may be there once; it is "" when it is not.
func (q *query) str(name string) string {
	v := q.all(name)
	switch len(v) {
	case 0:
		return ""
	case 1:
		return v[0]
	}
	_ = q.fail(name, "query parameter %q is there %d times", name, len(v))
	return ""
}

// path takes the path of a file, which is any bytes but NUL.
func (q *query) path(name string) string {
	p := q.str(name)
	switch {
	case q.err != nil:
	case p == "":
		q.fail(name, "query parameter %q is missing", name).WithHint("give a path inside the sandbox, percent-encoded")
	case len(p) > maxPath:
		q.fail(name, "the path has %d bytes", len(p)).WithHint("a path has at most %d", maxPath)
	case strings.ContainsRune(p, 0):
		_ = q.fail(name, "the path holds a NUL byte")
	}
	return p
}

// place takes a path, and as whom and within what it is used.
func (q *query) place() api.FilePlace {
	at := api.FilePlace{Path: q.path("path")}
	at.User, at.Within, at.ReadWithin = q.str("user"), q.all("within"), q.all("read_within")
	for _, dir := range slices.Concat(at.Within, at.ReadWithin) {
		if len(dir) > maxPath {
			q.fail("within", "a directory has %d bytes", len(dir)).WithHint("a path has at most %d", maxPath)
		}
	}
	return at
}

// integer takes a decimal number between lo and hi; missing when it is not there.
func (q *query) integer(name string, missing, lo, hi int64) int64 {
	s := q.str(name)
	if s == "" || q.err != nil {
		return missing
	}
	n, err := strconv.ParseInt(s, 10, 64)
	if err != nil || n < lo || n > hi {
		q.fail(name, "%s is %q", name, clip(s, 40)).WithHint("want a whole number from %d to %d", lo, hi)
	}
	return n
}

// mode takes permission bits in octal; 0 when they are not there.
func (q *query) mode() uint32 {
	s := q.str("mode")
	if s == "" || q.err != nil {
		return 0
	}
	n, err := strconv.ParseUint(s, 8, 32)
	if err != nil || n > 0o7777 {
		q.fail("mode", "mode is %q", clip(s, 40)).WithHint("want permission bits in octal, such as 0644")
	}
	return uint32(n)
}

// number takes any whole number of 64 bits; nil when it is not there.
func (q *query) number(name string) *int64 {
	if !q.left.Has(name) {
		return nil
	}
	s := q.str(name)
	n, err := strconv.ParseInt(s, 10, 64)
	if err != nil {
		q.fail(name, "%s is %q", name, clip(s, 40)).WithHint("want a whole number")
	}
	return &n
}

// time takes a moment, as RFC 3339 or in seconds since 1970, which may have a
// fraction; zero when it is not there.
func (q *query) time(name string) time.Time {
	s := q.str(name)
	if s == "" || q.err != nil {
		return time.Time{}
	}
	if t, err := time.Parse(time.RFC3339Nano, s); err == nil {
		return t
	}
	// 1e11 seconds are the year 5138, and still exact to the microsecond.
	if f, err := strconv.ParseFloat(s, 64); err == nil && f >= 0 && f < 1e11 {
		sec, frac := math.Modf(f)
		return time.Unix(int64(sec), int64(frac*1e9)).UTC()
	}
	q.fail(name, "%s is %q", name, clip(s, 40)).WithHint("want a time such as 2026-01-02T15:04:05Z, or seconds since 1970")
	return time.Time{}
}

// boolean takes true or false; false when it is not there.
func (q *query) boolean(name string) bool { return q.choice(name, false) }

// choice is boolean with what holds when it is not there.
func (q *query) choice(name string, missing bool) bool {
	switch s := q.str(name); s {
	case "":
		return missing
	case "false":
		return false
	case "true":
		return true
	default:
		q.fail(name, "%s is %q", name, clip(s, 40)).WithHint("want true or false")
		return false
	}
}

// oneOf takes one of some words; the first when it is not there.
func (q *query) oneOf(name string, words ...string) string {
	s := q.str(name)
	if s == "" || q.err != nil {
		return words[0]
	}
	if !slices.Contains(words, s) {
		q.fail(name, "%s is %q", name, clip(s, 40)).WithHint("want %s", strings.Join(words, " or "))
		return words[0]
	}
	return s
}

// labels takes KEY=VALUE, any number of times.
func (q *query) labels() map[string]string {
	var m map[string]string
	for _, kv := range q.all("label") {
		k, v, ok := strings.Cut(kv, "=")
		if !ok || k == "" {
			q.fail("label", "label %q is no pair", clip(kv, 80)).WithHint("want label=KEY=VALUE")
			return nil
		}
		if old, dup := m[k]; dup && old != v {
			q.fail("label", "label %q is asked for with two values", clip(k, 80)).WithHint("a sandbox has one value of a label")
			return nil
		}
		if m == nil {
			m = map[string]string{}
		}
		m[k] = v
	}
	return m
}

// states takes names of states, any number of times.
func (q *query) states() []api.State {
	known := api.States()
	var out []api.State
	for _, s := range q.all("state") {
		if !slices.Contains(known, api.State(s)) {
			q.fail("state", "there is no state %q", clip(s, 40)).WithHint("the states are %v", known)
			return nil
		}
		out = append(out, api.State(s))
	}
	return out
}
