package client

import (
	"errors"
	"io"
	"sync"
)

// source is the body of an upload. It distinguishes the reader's own error from the transport's.
// Its type hides every method of r except Read from the transport: r can be any reader, and is not
// closed.
type source struct {
	r io.Reader

	mu  sync.Mutex // the transport may still read when it returns an error
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
