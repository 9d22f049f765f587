package api

import (
	"strconv"
	"unicode/utf8"
)

// DefaultOutputChars is the number of characters of each stream of an exec that is usually enough
// for a model.
const DefaultOutputChars = 4000

// MaxOutputChars is the maximum of ExecRequest.MaxOutputChars.
const MaxOutputChars = MaxMaxOutput

// TruncateText truncates text to at most limit Unicode characters and reports whether it did. It
// removes the middle and puts a notice there that says how many characters were removed. The notice
// counts towards the limit. The beginning gets three fifths of the rest, rounded down, and the end
// gets what remains. If limit is not larger than the notice, the notice itself is truncated. Each
// byte that is not UTF-8 counts as one character.
func TruncateText(text string, limit int) (string, bool) {
	limit = max(limit, 0)
	if len(text) <= limit {
		return text, false
	}
	n := utf8.RuneCountInString(text)
	if n <= limit {
		return text, false
	}
	// The length of the notice depends on the number of removed characters, and that number
	// depends on the length of the notice. The first notice, which counts the whole text as
	// removed, is the longest. Each later one is as long or shorter. So the notice fits in the
	// first iteration or never, and the loop ends when two iterations give the same number.
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

// offsetOf returns the byte offset of the character with that number.
func offsetOf(text string, number int) int {
	at := 0
	for range number {
		_, size := utf8.DecodeRuneInString(text[at:])
		at += size
	}
	return at
}

// offsetFromEnd returns the byte offset at which the last number characters begin.
func offsetFromEnd(text string, number int) int {
	at := len(text)
	for range number {
		_, size := utf8.DecodeLastRuneInString(text[:at])
		at -= size
	}
	return at
}
