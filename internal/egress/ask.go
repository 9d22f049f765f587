package egress

import (
	"context"
	"errors"
	"time"

	"github.com/cloche-dev/cloche/internal/egress/rule"
)

// Asked is a connection that no rule covers.
type Asked struct {
	// Name is the host, or the address where no name was asked for.
	Name string
	Port uint16
	// Rule is the smallest rule that lets it out, in text form.
	Rule string
}

const (
	// askPatience is how long a connection waits for a word; clients wait for a
	// connection about as long.
	askPatience = 30 * time.Second
	// maxAsking is how many connections may wait at once; more are refused.
	maxAsking = 32
)

// errLetOut ends the wait of a connection that other rules let out.
var errLetOut = errors.New("other rules let it out")

// unspoken is true for a refusal that is about rules that are not there, and not
// about one that denies.
func unspoken(ref *rule.Refusal) bool {
	return ref.Allow != "" && (ref.Rule == rule.RuleName || ref.Rule == rule.RulePort || ref.Rule == rule.RuleAddress)
}

// asked waits for a word about a connection that was refused. It is true when it is
// worth to be judged again.
func (f *flow) asked(ref *rule.Refusal) bool {
	g := f.gate
	if !g.asks.Load() || !unspoken(ref) {
		return false
	}
	g.mu.Lock()
	if g.closed || !g.asks.Load() || len(g.asking) >= maxAsking {
		g.mu.Unlock()
		return false
	}
	g.asking[f] = struct{}{}
	g.mu.Unlock()
	defer func() {
		g.mu.Lock()
		defer g.mu.Unlock()
		delete(g.asking, f)
	}()
	name := string(f.rec.Name)
	if !f.named {
		name = f.to.Addr().String()
	}
	ctx, cancel := context.WithTimeout(f.ctx, askPatience)
	defer cancel()
	return g.ask(ctx, Asked{Name: name, Port: f.to.Port(), Rule: ref.Allow}) || errors.Is(context.Cause(f.ctx), errLetOut)
}
