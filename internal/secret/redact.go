package secret

import (
	"encoding/base64"
	"encoding/json"
	"net/url"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
)

const (
	// minRedact is how long a text must be to be taken out: shorter ones are
	// everywhere.
	minRedact = 6
	// maxEach is how many values of one secret are remembered: those before a rotation
	// are in what is written down still.
	maxEach = 4
	// mark stands where a value was.
	mark = "[redacted]"
)

// known are the values that were read. Its readers never wait.
type known struct {
	mu     sync.Mutex
	values map[string][]string // by name, the latest last

	texts atomic.Pointer[[]string] // what is taken out, the longest first
}

func (k *known) add(name, value string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	have := k.values[name]
	if n := len(have); n > 0 && have[n-1] == value {
		return
	}
	if k.values == nil {
		k.values = map[string][]string{}
	}
	have = append(slices.DeleteFunc(slices.Clone(have), func(v string) bool { return v == value }), value)
	k.values[name] = have[max(0, len(have)-maxEach):]
	var texts []string
	for _, values := range k.values {
		for _, v := range values {
			texts = append(texts, forms(v)...)
		}
	}
	slices.SortFunc(texts, func(a, b string) int { return len(b) - len(a) })
	texts = slices.Compact(texts)
	k.texts.Store(&texts)
}

// forms are the ways in which a value is written into other texts.
func forms(v string) []string {
	quoted, err := json.Marshal(v)
	if err != nil { // strings always marshal
		quoted = []byte(`""`)
	}
	out := []string{v, url.QueryEscape(v), url.PathEscape(v), string(quoted[1 : len(quoted)-1]), base64.StdEncoding.EncodeToString([]byte(v))}
	return slices.DeleteFunc(out, func(s string) bool { return len(s) < minRedact })
}

// Redact takes the values out of a text that this Store has read. It costs little
// where there are none.
func (s *Store) Redact(text string) string {
	texts := s.known.texts.Load()
	if texts == nil || len(text) < minRedact {
		return text
	}
	for _, t := range *texts {
		if strings.Contains(text, t) {
			text = strings.ReplaceAll(text, t, mark)
		}
	}
	return text
}
