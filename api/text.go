package api

import (
	"strconv"
	"unicode/utf8"
)

// DefaultOutputChars is how much of each stream of an exec is usually enough for a
// model to read, in characters.
const DefaultOutputChars = 4000

// MaxOutputChars is the largest ExecRequest.MaxOutputChars.
const MaxOutputChars = MaxMaxOutput

// TruncateText cuts text to at most limit Unicode characters, and says whether it
// did. What goes is in the middle, where a notice says how many characters were left
// out; the notice counts too, and of what it leaves the beginning gets three fifths,
// rounded down, and the end the rest. Where there is no room for more than the
// notice, that is cut. Bytes that are not UTF-8 count as a character each.
func TruncateText(text string, limit int) (string, bool) {
	limit = max(limit, 0)
	if len(text) <= limit {
		return text, false
	}
	n := utf8.RuneCountInString(text)
	if n <= limit {
		return text, false
	}
	// How long the notice is depends on how much is left out, and that on how long the
	// notice is. The first is the longest, of a text of which nothing is left; each that
	// follows is as long or shorter, so there is room from the first on or never, and it
	// ends where two are the same.
	omitted := n
	for {
		notice := truncationNotice(omitted)
		room := limit - len(notice) // the notice is ASCII
		if room <= 0 {
			return notice[:limit], true
		}
		if n-room == omitted {
			head := room * 3 / 5
			return text[:offsetOf(text, head)] + notice + text[offsetFromEnd(text, room-head):], true
		}
		omitted = n - room
	}
}

func truncationNotice(omitted int) string {
	return "\n\n... [" + strconv.Itoa(omitted) + " characters truncated] ...\n\n"
}

// offsetOf is where the character with that number begins.
func offsetOf(text string, number int) int {
	at := 0
	for range number {
		_, size := utf8.DecodeRuneInString(text[at:])
		at += size
	}
	return at
}

// offsetFromEnd is where the last characters, so many, begin.
func offsetFromEnd(text string, number int) int {
	at := len(text)
	for range number {
		_, size := utf8.DecodeLastRuneInString(text[:at])
		at -= size
	}
	return at
}
