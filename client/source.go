package client

import (
	"errors"
	"io"
	"sync"
)

// source is the body of an upload. It keeps the reader's own error apart from
// the transport's, and its type keeps the transport from asking for more of r
// than Read: r may be anything, and is not closed.
type source struct {
	r io.Reader

	mu  sync.Mutex // the transport may still be reading when it reports
	err error
}

func (s *source) Read(p []byte) (int, error) {
	n, err := s.r.Read(p)
	if err != nil && !errors.Is(err, io.EOF) {
		s.mu.Lock()
		s.err = err
		s.mu.Unlock()
	}
	return n, err
}

func (s *source) failure() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.err
}
