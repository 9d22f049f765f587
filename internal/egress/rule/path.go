package rule

import (
	"net/url"
	"strings"
	"unicode"
	"unicode/utf8"
)

// PathFault says why a path of a request cannot be compared with the paths of a rule.
type PathFault int

const (
	// PathFine: every server reads the path as the same.
	PathFine PathFault = iota
	// PathMalformed: it is no path, or holds what no path has as a character: a control
	// character, a backslash, or bytes that are no UTF-8, such as an overlong form.
	PathMalformed
	// PathDots: some server could read a segment of it as "." or "..".
	PathDots
	// PathTwoWays: it has an encoded slash, an empty segment, or what is still encoded
	// once it is decoded.
	PathTwoWays
)

// ReadPath decodes the path of a request as it was sent, without its query. The fault is
// the first of those that are there, malformed ones before the others. Every rule on
// paths of requests is about a path that this has read.
func ReadPath(raw string) (decoded string, fault PathFault) {
	decoded, err := url.PathUnescape(raw)
	if err != nil || !strings.HasPrefix(raw, "/") || !utf8.ValidString(decoded) || strings.ContainsFunc(raw+decoded, neverInPath) {
		return "", PathMalformed
	}
	if hasDots(decoded) || hasDots(decodeOnce(decoded)) || hasDots(decodeOnce(decodeOnce(decoded))) {
		return decoded, PathDots
	}
	if strings.Count(decoded, "/") != strings.Count(raw, "/") || strings.Contains(decoded, "//") || decodeOnce(decoded) != decoded {
		return decoded, PathTwoWays
	}
	return decoded, PathFine
}

// neverInPath is true for what no path holds, encoded or not.
func neverInPath(r rune) bool { return unicode.IsControl(r) || r == '\\' || r == utf8.RuneError }

// decodeOnce decodes every escape in p as a lenient server does: an invalid escape stays.
func decodeOnce(p string) string {
	if !strings.Contains(p, "%") {
		return p
	}
	var b strings.Builder
	for i := 0; i < len(p); i++ {
		switch {
		case p[i] == '%' && i+2 < len(p) && isHex(p[i+1:i+3]):
			b.WriteByte(unhex(p[i+1])<<4 | unhex(p[i+2]))
			i += 2
		case p[i] == '%' && i+5 < len(p) && p[i+1]|0x20 == 'u' && isHex(p[i+2:i+6]): // of some servers
			var r rune
			for _, c := range []byte(p[i+2 : i+6]) {
				r = r<<4 | rune(unhex(c))
			}
			b.WriteRune(r)
			i += 5
		default:
			b.WriteByte(p[i])
		}
	}
	return b.String()
}

func isHex(s string) bool { return strings.Trim(s, "0123456789abcdefABCDEF") == "" }

func unhex(c byte) byte {
	if c <= '9' {
		return c - '0'
	}
	return c | 0x20 - 'a' + 10
}

// hasDots is true where a segment is made of dots alone, to a server that drops its
// parameters or the spaces around it, or takes a character for the one that it looks like.
func hasDots(p string) bool {
	for seg := range strings.FieldsFuncSeq(p, slashLike) {
		name, _, _ := strings.Cut(seg, ";")
		if strings.ContainsFunc(name, dotLike) && strings.TrimFunc(name, func(r rune) bool { return dotLike(r) || unicode.IsSpace(r) || unicode.IsControl(r) }) == "" {
			return true
		}
	}
	return false
}

// slashLike is true for what separates segments, and for what some systems take for that.
func slashLike(r rune) bool {
	switch r {
	case '/', '\\', '\u2044', '\u2215', '\uff0f', '\uff3c':
		return true
	}
	return false
}

// dotLike is true for the dot, and for what some systems take for one or two.
func dotLike(r rune) bool {
	switch r {
	case '.', '\u2024', '\u2025', '\u3002', '\ufe52', '\uff0e', '\uff61':
		return true
	}
	return false
}
