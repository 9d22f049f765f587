package audit

import "strings"

// Redactor takes secret values that it knows out of a text. It is called for
// each part of each record, from any goroutine, so a text without one must cost
// little.
type Redactor interface {
	Redact(text string) string
}

// Redacted stands where something secret was.
const Redacted = "[redacted]"

// credentials takes out of one argument what looks like a credential: what
// follows Bearer or Basic, and the password of a URL.
func credentials(arg string) string {
	for _, scheme := range []string{"bearer", "basic"} {
		arg = afterScheme(arg, scheme)
	}
	return inURLs(arg)
}

// minToken is how long what follows a scheme must be to be taken for a token:
// "basic test" is a way to speak.
const minToken = 6

func afterScheme(arg, scheme string) string {
	var out strings.Builder
	for {
		i := indexFold(arg, scheme)
		if i < 0 {
			break
		}
		end := i + len(scheme)
		from := end
		for from < len(arg) && (arg[from] == ' ' || arg[from] == '\t') {
			from++
		}
		to := from
		for to < len(arg) && isToken(arg[to]) {
			to++
		}
		word := i > 0 && isWord(arg[i-1])
		if word || from == end || to-from < minToken {
			out.WriteString(arg[:end])
			arg = arg[end:]
			continue
		}
		out.WriteString(arg[:from])
		out.WriteString(Redacted)
		arg = arg[to:]
	}
	if out.Len() == 0 {
		return arg
	}
	out.WriteString(arg)
	return out.String()
}

// inURLs takes out the passwords of scheme://user:password@host.
func inURLs(arg string) string {
	var out strings.Builder
	for {
		i := strings.Index(arg, "://")
		if i < 0 {
			break
		}
		i += len("://")
		end := i
		for end < len(arg) && strings.IndexByte("/?# \t\"'", arg[end]) < 0 {
			end++
		}
		at := strings.LastIndexByte(arg[i:end], '@')
		colon := strings.IndexByte(arg[i:end], ':')
		if at < 0 || colon < 0 || colon > at {
			out.WriteString(arg[:end])
			arg = arg[end:]
			continue
		}
		out.WriteString(arg[:i+colon+1])
		out.WriteString(Redacted)
		out.WriteString(arg[i+at : end])
		arg = arg[end:]
	}
	if out.Len() == 0 {
		return arg
	}
	out.WriteString(arg)
	return out.String()
}

// indexFold is strings.Index without regard to the case of ASCII letters; word is
// in lower case.
func indexFold(s, word string) int {
	for i := 0; i+len(word) <= len(s); i++ {
		if s[i]|0x20 == word[0] && strings.EqualFold(s[i:i+len(word)], word) {
			return i
		}
	}
	return -1
}

// isToken is true for what a bearer token or base64 is made of.
func isToken(b byte) bool { return isWord(b) || strings.IndexByte("-._~+/=", b) >= 0 }

func isWord(b byte) bool {
	return b >= '0' && b <= '9' || b|0x20 >= 'a' && b|0x20 <= 'z' || b == '_'
}
