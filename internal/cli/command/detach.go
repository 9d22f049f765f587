package command

import (
	"bytes"
	"strings"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/terminal"
)

// DefaultDetachKeys leave a terminal process running, as people know them from
// containers.
const DefaultDetachKeys = "ctrl-p,ctrl-q"

// maxDetachKeys bounds what is held back of the input.
const maxDetachKeys = 16

// ParseDetachKeys reads a list of keys such as "ctrl-p,ctrl-q" or "ctrl-],q": each
// is one ASCII character, or ctrl- and one. No keys are none.
func ParseDetachKeys(s string) ([]byte, error) {
	if s == "" {
		return nil, nil
	}
	bad := func(why string) ([]byte, error) {
		return nil, api.Invalid("detach_keys", "--detach-keys %q %s", terminal.Clip(s), why).
			WithHint("write keys with commas between them, such as ctrl-p,ctrl-q or ctrl-],q; '' for no keys")
	}
	var keys []byte
	for key := range strings.SplitSeq(s, ",") {
		letter, ctrl := strings.CutPrefix(strings.ToLower(key), "ctrl-")
		switch {
		case ctrl && len(letter) == 1 && letter[0] >= 'a' && letter[0] <= 'z':
			keys = append(keys, letter[0]-'a'+1)
		case ctrl && len(letter) == 1 && strings.Contains(`@[\]^_`, letter):
			keys = append(keys, letter[0]-'@')
		case !ctrl && len(key) == 1 && key[0] > ' ' && key[0] < 0x7f:
			keys = append(keys, key[0])
		default:
			return bad("has a key that there is not: " + terminal.Clip(key))
		}
	}
	if len(keys) > maxDetachKeys {
		return bad("has too many keys")
	}
	return keys, nil
}

// keyFilter finds the detach keys in what is typed. What may be their beginning
// is held back until the next key, or until flush, shows whether it is.
type keyFilter struct {
	keys []byte // none: everything is passed on
	held []byte
}

// feed returns what is to be passed on of p, and whether the keys were complete;
// what stands behind them is dropped.
func (f *keyFilter) feed(p []byte) (pass []byte, detach bool) {
	if len(f.keys) == 0 {
		return p, false
	}
	for _, b := range p {
		f.held = append(f.held, b)
		for !bytes.HasPrefix(f.keys, f.held) {
			pass, f.held = append(pass, f.held[0]), f.held[1:]
		}
		if len(f.held) == len(f.keys) {
			f.held = nil
			return pass, true
		}
	}
	return pass, false
}

// flush gives up what is held back.
func (f *keyFilter) flush() []byte {
	held := f.held
	f.held = nil
	return held
}
