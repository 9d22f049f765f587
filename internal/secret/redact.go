package secret

import (
	"cmp"
	"encoding/base32"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
)

const (
	// minRedact is how long a text must be to be taken out: shorter ones are
	// everywhere.
	minRedact = 6
	// minPart is how much of the beginning of a value is taken out at the end of a
	// text that was cut there.
	minPart = 12
	// maxEach is how many values of one secret are remembered: those before a rotation
	// are in what is written down still.
	maxEach = 4
	// maxDecoded is how many times percent-encoding is undone.
	maxDecoded = 3
	// mark stands where a value was.
	mark = "[redacted]"
)

// known are the values that were read. Its readers never wait.
type known struct {
	mu     sync.Mutex
	values map[string][]string // by name, the latest last

	texts atomic.Pointer[forbidden]
}

// forbidden are the texts that are taken out.
type forbidden struct {
	texts lexicon
	// dotless are the same without dots: a long value that is made a host name is
	// divided into labels.
	dotless lexicon
}

// lexicon finds texts in another one. All are in lower case.
type lexicon struct {
	// short are those of less than minPart bytes, and long the others by the first
	// minPart of them, the longest first.
	short []string
	long  map[string][]string
	// first has a bit for the first two bytes of each of long.
	first [1 << 16 / 64]uint64
}

func newLexicon(texts []string) lexicon {
	slices.SortFunc(texts, func(a, b string) int { return cmp.Or(len(b)-len(a), strings.Compare(a, b)) })
	l := lexicon{long: map[string][]string{}}
	for _, t := range slices.Compact(texts) {
		if len(t) < minPart {
			l.short = append(l.short, t)
			continue
		}
		l.long[t[:minPart]] = append(l.long[t[:minPart]], t)
		pair := uint16(t[0])<<8 | uint16(t[1])
		l.first[pair/64] |= 1 << (pair % 64)
	}
	return l
}

// at is how many bytes of text, from i on, are one of the long ones, or are the
// beginning of one behind which the text was cut.
func (l *lexicon) at(text string, i int) int {
	if pair := uint16(text[i])<<8 | uint16(text[i+1]); l.first[pair/64]&(1<<(pair%64)) == 0 {
		return 0
	}
	for _, t := range l.long[text[i:i+minPart]] {
		n := minPart
		for n < len(t) && i+n < len(text) && t[n] == text[i+n] {
			n++
		}
		if n == len(t) || isCut(text[i+n:]) {
			return n
		}
	}
	return 0
}

// isCut says whether a text was cut before rest.
func isCut(rest string) bool {
	return strings.HasPrefix(rest, "...") || strings.HasPrefix(rest, "…") || strings.TrimLeft(rest, `."'`) == ""
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
	var texts, dotless []string
	for _, values := range k.values {
		for _, v := range values {
			for _, form := range forms(v) {
				texts = append(texts, form)
				if bare := strings.ReplaceAll(form, ".", ""); len(bare) >= minRedact {
					dotless = append(dotless, bare)
				}
			}
		}
	}
	k.texts.Store(&forbidden{newLexicon(texts), newLexicon(dotless)})
}

// forms are the ways in which a value is written into other texts, in lower case.
// Percent-encoding is not among them: Redact undoes it.
func forms(v string) []string {
	quoted, err := json.Marshal(v)
	if err != nil { // strings always marshal
		quoted = []byte(`""`)
	}
	goQuoted := strconv.Quote(v)
	raw := []byte(v)
	out := []string{
		v, url.QueryEscape(v), string(quoted[1 : len(quoted)-1]), goQuoted[1 : len(goQuoted)-1],
		hex.EncodeToString(raw), base32.StdEncoding.WithPadding(base32.NoPadding).EncodeToString(raw),
	}
	for _, enc := range []*base64.Encoding{base64.StdEncoding, base64.URLEncoding} {
		bare := enc.WithPadding(base64.NoPadding)
		out = append(out, enc.EncodeToString(raw), bare.EncodeToString(raw))
		// Behind other bytes, such as those of "user:", a value is encoded in two more
		// ways. The characters that depend on its neighbors are left out.
		for shift := range 3 {
			text := bare.EncodeToString(append(make([]byte, shift, shift+len(raw)), raw...))
			text = text[(shift*8+5)/6:]
			if (shift+len(raw))%3 != 0 {
				text = text[:len(text)-1]
			}
			out = append(out, text)
		}
	}
	for i := range out {
		out[i] = lower(out[i])
	}
	return slices.DeleteFunc(out, func(s string) bool { return len(s) < minRedact })
}

// lower is s with ASCII letters in lower case; its length stays.
func lower(s string) string {
	for i := range len(s) {
		if 'A' <= s[i] && s[i] <= 'Z' {
			b := []byte(s)
			for ; i < len(b); i++ {
				if 'A' <= b[i] && b[i] <= 'Z' {
					b[i] |= 0x20
				}
			}
			return string(b)
		}
	}
	return s
}

// Redact takes the values out of a text that this Store has read: as they are, in
// upper or lower case, in the usual encodings, divided by dots, and where the end of
// the text is the beginning of one. It costs little where there are none.
func (s *Store) Redact(text string) string {
	f := s.known.texts.Load()
	if f == nil || len(text) < minRedact {
		return text
	}
	v := view{text: lower(text)}
	spans := v.find(&f.texts, nil)
	for range maxDecoded {
		next, changed := v.decoded()
		if !changed {
			break
		}
		v = next
		spans = v.find(&f.texts, spans)
	}
	if strings.IndexByte(v.text, '.') >= 0 {
		spans = v.without('.').find(&f.dotless, spans)
	}
	if len(spans) == 0 {
		return text
	}
	return masked(text, spans)
}

// span is a part of the original text.
type span struct{ from, to int }

// view is a text made of another one. A nil at is the text itself.
type view struct {
	text string
	// at is where in the original each byte comes from.
	at []span
}

// place is where the bytes from i to j of the view, one at least, are in the original.
func (v view) place(i, j int) span {
	if v.at == nil {
		return span{i, j}
	}
	return span{v.at[i].from, v.at[j-1].to}
}

// find adds the places of the texts.
func (v view) find(l *lexicon, spans []span) []span {
	for _, t := range l.short {
		for from := 0; ; {
			i := strings.Index(v.text[from:], t)
			if i < 0 {
				break
			}
			spans = append(spans, v.place(from+i, from+i+len(t)))
			from += i + len(t)
		}
	}
	if len(l.long) == 0 {
		return spans
	}
	// One value may begin within another.
	for i := 0; i+minPart <= len(v.text); i++ {
		if n := l.at(v.text, i); n > 0 {
			spans = append(spans, v.place(i, i+n))
		}
	}
	return spans
}

// decoded is the view with one layer of percent-encoding undone.
func (v view) decoded() (_ view, changed bool) {
	if strings.IndexByte(v.text, '%') < 0 {
		return v, false
	}
	return v.rewritten(func(i int) (b byte, n int) {
		if v.text[i] == '%' && i+2 < len(v.text) {
			if raw, err := hex.DecodeString(v.text[i+1 : i+3]); err == nil {
				if changed = true; 'A' <= raw[0] && raw[0] <= 'Z' {
					raw[0] |= 0x20
				}
				return raw[0], 3
			}
		}
		return v.text[i], 1
	}), changed
}

// without is the view without a byte.
func (v view) without(drop byte) view {
	return v.rewritten(func(i int) (byte, int) {
		if v.text[i] == drop {
			return 0, -1
		}
		return v.text[i], 1
	})
}

// rewritten is made of the view by a function that says which byte comes of those at
// i and how many they are; a negative number leaves one out.
func (v view) rewritten(next func(i int) (b byte, n int)) view {
	out := make([]byte, 0, len(v.text))
	at := make([]span, 0, len(v.text))
	for i := 0; i < len(v.text); {
		b, n := next(i)
		if n > 0 {
			out, at = append(out, b), append(at, v.place(i, i+n))
		}
		i += max(n, -n)
	}
	return view{string(out), at}
}

// masked is the text with the mark in the place of the spans, which may overlap.
func masked(text string, spans []span) string {
	slices.SortFunc(spans, func(a, b span) int { return a.from - b.from })
	var out strings.Builder
	end := 0
	for i := 0; i < len(spans); {
		from, to := spans[i].from, spans[i].to
		for i++; i < len(spans) && spans[i].from < to; i++ {
			to = max(to, spans[i].to)
		}
		out.WriteString(text[end:from])
		out.WriteString(mark)
		end = to
	}
	out.WriteString(text[end:])
	return out.String()
}
