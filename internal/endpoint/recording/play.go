package recording

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"sync"

	"github.com/cloche-dev/cloche/api"
)

// Player answers requests out of a recording, each answer once. Its methods are safe
// for any number of goroutines.
type Player struct {
	name    string
	byOrder bool

	mu      sync.Mutex
	f       *os.File
	entries []entry
	asked   int
}

// entry is an exchange in the file.
type entry struct {
	n      int64
	off    int64
	size   int
	digest [32]byte
	method string
	path   string
	used   bool
}

// Mismatch is a request that the recording does not answer.
type Mismatch struct {
	// Asked counts requests, this among them.
	Asked int
	// Reason says what was recorded instead.
	Reason string
}

// Error implements error.
func (m *Mismatch) Error() string { return m.Reason }

// Play opens a recording to be replayed. What is added to it later is not in it.
func (s *Store) Play(tenant, name string, how api.EndpointReplay) (*Player, error) {
	f, err := s.Read(tenant, name)
	if err != nil {
		return nil, err
	}
	p := &Player{name: name, byOrder: how.Match == api.ReplayByOrder, f: f}
	_, _, err = scan(f, func(x Exchange, off int64, size int) error {
		p.entries = append(p.entries, entry{n: x.N, off: off, size: size, digest: x.Request.digest(), method: x.Request.Method, path: x.Request.Path})
		return nil
	})
	if err != nil && !errors.Is(err, errTorn) {
		f.Close()
		return nil, damaged(name, err)
	}
	slices.SortStableFunc(p.entries, func(a, b entry) int { return cmp.Compare(a.n, b.n) })
	return p, nil
}

// Next is the answer to a request; the error is a *Mismatch without one.
func (p *Player) Next(r Request) (Response, error) {
	digest := r.digest()
	p.mu.Lock()
	defer p.mu.Unlock()
	p.asked++
	found, next := -1, -1
	for i, e := range p.entries {
		switch {
		case e.used:
			continue
		case next < 0, (p.entries[next].method != r.Method || p.entries[next].path != r.Path) && e.method == r.Method && e.path == r.Path && !p.byOrder:
			next = i // the one to compare with: the next, of the same path if there is one
		}
		if p.byOrder {
			if e.method == r.Method && e.path == r.Path {
				found = i
			}
			break
		}
		if e.digest == digest {
			found = i
			break
		}
	}
	if next < 0 {
		return Response{}, p.mismatch("recording %s has %d answers, and all of them were given", p.name, len(p.entries))
	}
	if found < 0 {
		x, err := p.read(next)
		if err != nil {
			return Response{}, err
		}
		return Response{}, p.mismatch("request %d is not what recording %s has as its exchange %d: %s", p.asked, p.name, x.N, difference(x.Request, r))
	}
	x, err := p.read(found)
	if err != nil {
		return Response{}, err
	}
	p.entries[found].used = true
	if x.Omitted != "" {
		return Response{}, p.mismatch("exchange %d of recording %s has no answer: %.200s", x.N, p.name, x.Omitted)
	}
	return x.Response, nil
}

func (p *Player) mismatch(format string, args ...any) error {
	return &Mismatch{Asked: p.asked, Reason: fmt.Sprintf(format, args...)}
}

// read reads one exchange again. The caller holds mu.
func (p *Player) read(i int) (Exchange, error) {
	if p.f == nil {
		return Exchange{}, os.ErrClosed
	}
	line := make([]byte, p.entries[i].size)
	if _, err := io.ReadFull(io.NewSectionReader(p.f, p.entries[i].off, int64(len(line))), line); err != nil {
		return Exchange{}, fmt.Errorf("read recording %s: %w", p.name, err)
	}
	return parse(line)
}

// Close ends it.
func (p *Player) Close() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.f == nil {
		return nil
	}
	err := p.f.Close()
	p.f = nil
	if err != nil {
		return fmt.Errorf("close recording %s: %w", p.name, err)
	}
	return nil
}
