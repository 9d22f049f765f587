//go:build linux

package output

import (
	"bytes"
	"sync"
	"unicode/utf8"
)

// lastLineBytes are kept of a line.
const lastLineBytes = 256

// LastLine keeps the last line of a stream that is not blank, or what there is of
// it so far. It is safe for concurrent use.
type LastLine struct {
	mu   sync.Mutex
	line []byte // ended
	part []byte // not ended
}

// Add takes what was written next.
func (l *LastLine) Add(p []byte) {
	l.mu.Lock()
	defer l.mu.Unlock()
	nl := bytes.LastIndexByte(p, '\n')
	if nl < 0 {
		l.extend(p)
		return
	}
	ended, rest := p[:nl], p[nl+1:]
	// From the back: the last line that says something. What is before the first
	// newline belongs to part.
	for {
		at := bytes.LastIndexByte(ended, '\n')
		if at < 0 {
			l.extend(ended)
			if len(bytes.TrimSpace(l.part)) > 0 {
				l.line = append(l.line[:0], l.part...)
			}
			break
		}
		if line := cut(ended[at+1:]); len(bytes.TrimSpace(line)) > 0 {
			l.line = append(l.line[:0], line...)
			break
		}
		ended = ended[:at]
	}
	l.part = append(l.part[:0], cut(rest)...)
}

func (l *LastLine) extend(p []byte) {
	l.part = append(l.part, p[:min(len(p), lastLineBytes-len(l.part))]...)
}

func cut(p []byte) []byte { return p[:min(len(p), lastLineBytes)] }

// Text is the line, cut at a rune.
func (l *LastLine) Text() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	line := l.part
	if len(bytes.TrimSpace(line)) == 0 {
		line = l.line
	}
	line = bytes.TrimRight(line, "\r")
	if len(line) == lastLineBytes {
		// A rune at the end may be incomplete.
		for i := 1; i < utf8.UTFMax && i <= len(line); i++ {
			if c := line[len(line)-i]; utf8.RuneStart(c) {
				if !utf8.FullRune(line[len(line)-i:]) {
					line = line[:len(line)-i]
				}
				break
			}
		}
	}
	return string(line)
}
