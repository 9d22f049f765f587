// Package secret reads the values of secrets where the operator keeps them, when
// they are used, and knows which texts must not be seen in what is written down.
package secret

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"strings"
	"sync"
	"time"

	"github.com/cloche-dev/cloche/api"
)

const (
	// fresh is how long a value is used without being read again: a rotated one is in
	// use after that.
	fresh = 5 * time.Second
	// failed is how long a source that failed is left alone.
	failed = time.Second
	// maxValue is the longest value.
	maxValue = 64 << 10
)

// Source is where the value of a secret is; one field is set.
type Source struct {
	// Env is a variable of this process.
	Env string
	// File is an absolute path.
	File string
	// Exec is a program, by its absolute path, and its arguments.
	Exec []string
}

func (s Source) kind() string {
	switch {
	case s.Env != "":
		return "env"
	case s.File != "":
		return "file"
	}
	return "exec"
}

func (s Source) equal(o Source) bool {
	return s.Env == o.Env && s.File == o.File && strings.Join(s.Exec, "\x00") == strings.Join(o.Exec, "\x00")
}

// Store knows where the values of secrets are. It is safe for concurrent use.
type Store struct {
	log   *slog.Logger
	now   func() time.Time
	known known

	mu   sync.Mutex
	kept map[string]*entry
}

// entry is one secret. Its mutex is held while the value is read, so that it is
// read once for all who wait.
type entry struct {
	source Source

	mu    sync.Mutex
	value string
	err   error
	until time.Time // of value or err
}

// New makes a Store that knows no secrets. Logger is told why one cannot be read;
// Store.Logger is the same with values taken out.
func New(logger *slog.Logger) *Store {
	s := &Store{now: time.Now, kept: map[string]*entry{}}
	s.log = slog.New(redacting{logger.Handler(), s.Redact})
	return s
}

// Use puts other sources in force, by name. What is read of one that did not change
// is kept.
func (s *Store) Use(sources map[string]Source) {
	s.mu.Lock()
	defer s.mu.Unlock()
	maps.DeleteFunc(s.kept, func(name string, e *entry) bool {
		now, still := sources[name]
		return !still || !now.equal(e.source)
	})
	for name, source := range sources {
		if s.kept[name] == nil {
			s.kept[name] = &entry{source: source}
		}
	}
}

// Learn reads what costs little to read, so that Redact knows it.
func (s *Store) Learn(ctx context.Context) {
	s.mu.Lock()
	kept := maps.Clone(s.kept)
	s.mu.Unlock()
	for name, e := range kept {
		if e.source.kind() != "exec" {
			_, _ = s.Value(ctx, name) // why not is in the log
		}
	}
}

// Value is the value of a secret at this moment, or a few seconds ago. The error is
// a *api.Error that says nothing of where the value is.
func (s *Store) Value(ctx context.Context, name string) (string, error) {
	s.mu.Lock()
	e := s.kept[name]
	s.mu.Unlock()
	if e == nil {
		return "", unavailable(name, errors.New("the rules have no such secret any more"))
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if now := s.now(); e.until.IsZero() || !now.Before(e.until) {
		value, err := e.source.read(ctx)
		if err != nil && ctx.Err() != nil {
			return "", unavailable(name, ctx.Err()) // who asked has gone; that says nothing of the source
		}
		e.value, e.err, e.until = value, err, now.Add(fresh)
		if err != nil {
			e.until = now.Add(failed)
			s.log.WarnContext(ctx, "a secret cannot be read", "secret", name, "from", e.source.kind(), "error", err)
		} else {
			s.known.add(name, value)
		}
	}
	if e.err != nil {
		return "", unavailable(name, e.err)
	}
	return e.value, nil
}

func unavailable(name string, cause error) *api.Error {
	e := api.Errorf(api.CodeUnavailable, "the secret %s cannot be read now", name).WithCause(cause)
	e.Retryable = true
	return e.WithHint("the daemon's log says why; a file must belong to the daemon's user and be readable by no other user")
}

// read reads the value.
func (s Source) read(ctx context.Context) (string, error) {
	var value string
	var err error
	switch s.kind() {
	case "env":
		value, err = readEnv(s.Env)
	case "file":
		value, err = readFile(s.File)
	default:
		value, err = readExec(ctx, s.Exec)
	}
	if err != nil {
		return "", fmt.Errorf("read %s: %w", s.kind(), err)
	}
	// The end of a line is how files and programs end, not part of what they hold.
	value = strings.TrimSuffix(strings.TrimSuffix(value, "\n"), "\r")
	switch {
	case value == "":
		return "", errors.New("the value is empty")
	case len(value) > maxValue:
		return "", fmt.Errorf("the value has more than %d bytes", maxValue)
	case strings.ContainsRune(value, 0):
		return "", errors.New("the value has a NUL byte in it, which no program can be given")
	}
	return value, nil
}
