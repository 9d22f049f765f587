package langbot

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"strconv"
	"strings"
	"sync"
)

// placement is for whom an action is: a workspace of an instance, in one generation.
type placement struct {
	Instance   string `json:"instance"`
	Workspace  string `json:"workspace"`
	Generation int64  `json:"generation"`
}

// durable names what outlives generations: directories and skills. It is our tenant.
func (p placement) durable() string {
	sum := sha256.Sum256([]byte(p.Instance + "\x00" + p.Workspace))
	return "ws-" + hex.EncodeToString(sum[:])[:24]
}

// runtime names what ends with the generation: sessions.
func (p placement) runtime() string {
	return p.durable() + "-g" + strconv.FormatInt(p.Generation, 10)
}

// safeID is a session's id as it is answered: each run of other characters becomes
// one "-", and none stands at an end.
func safeID(logical string) (string, error) {
	var b strings.Builder
	run := false
	for _, r := range strings.TrimSpace(logical) {
		switch {
		case r >= 'a' && r <= 'z', r >= 'A' && r <= 'Z', r >= '0' && r <= '9', r == '_', r == '.', r == '-':
			b.WriteRune(r)
			run = false
		case !run:
			b.WriteByte('-')
			run = true
		}
	}
	safe := strings.Trim(b.String(), "-")
	if safe == "" {
		return "", failed(classValidation, "session_id: no letter or digit of ASCII is in it, and at least one is needed")
	}
	if len(safe) > maxSessionID {
		return "", failed(classValidation, "session_id: it has %d characters, and %d are allowed", len(safe), maxSessionID)
	}
	return safe, nil
}

// maxSessionID bounds a session's id.
const maxSessionID = 512

// physical is the key of a session, which the client computes too for the relay.
func (p placement) physical(logical string) (string, error) {
	safe, err := safeID(logical)
	if err != nil {
		return "", err
	}
	return p.runtime() + "-" + safe, nil
}

// fence knows the newest generation of each workspace, and ends what older ones do.
// It is safe for concurrent use.
type fence struct {
	mu   sync.Mutex
	most int
	// current is by the durable name.
	current map[string]int64
	// flights are what runs now.
	flights map[*flight]struct{}
}

// flight is one action or relay under way.
type flight struct {
	place  placement
	cancel context.CancelCauseFunc
}

func newFence(most int) *fence {
	return &fence{most: most, current: map[string]int64{}, flights: map[*flight]struct{}{}}
}

// observe lets an action in, and ends those of older generations. advanced says that
// sessions of older generations have to go before anything is done. The caller calls
// land when it is done.
func (f *fence) observe(ctx context.Context, p placement) (flying context.Context, land func(), advanced bool, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	key := p.durable()
	now, known := f.current[key]
	switch {
	case !known && len(f.current) >= f.most:
		return nil, nil, false, failed(classPermission, "the runtime knows %d workspaces, which is the most", f.most)
	case known && p.Generation < now:
		return nil, nil, false, stale()
	case p.Generation > now:
		advanced = known
		f.current[key] = p.Generation
		for fl := range f.flights {
			if fl.place.durable() == key && fl.place.Generation < p.Generation {
				fl.cancel(stale())
			}
		}
	}
	flying, land = f.take(ctx, p)
	return flying, land, advanced, nil
}

// enter lets a relay in, which knows no workspace that no action has shown.
func (f *fence) enter(ctx context.Context, p placement) (context.Context, func(), bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.current[p.durable()] != p.Generation {
		return nil, nil, false
	}
	ctx, land := f.take(ctx, p)
	return ctx, land, true
}

// take is for who holds mu.
func (f *fence) take(ctx context.Context, p placement) (context.Context, func()) {
	ctx, cancel := context.WithCancelCause(ctx)
	fl := &flight{p, cancel}
	f.flights[fl] = struct{}{}
	return ctx, func() {
		f.mu.Lock()
		delete(f.flights, fl)
		f.mu.Unlock()
		cancel(nil)
	}
}

// newest is the newest placement of a workspace.
func (f *fence) newest(p placement) placement {
	f.mu.Lock()
	defer f.mu.Unlock()
	p.Generation = f.current[p.durable()]
	return p
}

// recovered makes a generation known that a session of an earlier runtime had.
func (f *fence) recovered(p placement) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.current[p.durable()] = max(f.current[p.durable()], p.Generation)
}
