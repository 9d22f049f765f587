package pool

import "time"

// reserved reports whether the last member is kept from a user who took one after the other, for
// the others who share the kind.
func (of *kind[M]) reserved(user string, now time.Time) bool {
	if len(of.ready) > 1 || of.last != user || of.streak <= of.want {
		return false
	}
	for u, at := range of.users {
		if u != user && now.Sub(at) <= recently {
			return true
		}
	}
	return false
}

// missing is the kind that a member is to be made of next: the one that was asked for last. The
// caller holds mu.
func (p *Pool[K, M]) missing() (at K, of *kind[M], ok bool) {
	for k, c := range p.kinds {
		if len(c.ready) >= c.want || c.failed || of != nil && c.used.Before(of.used) {
			continue
		}
		if p.opts.Valid == nil || p.opts.Valid(k) {
			at, of = k, c
		}
	}
	if of == nil || !p.afford(of) {
		return at, nil, false
	}
	return at, of, true
}

// afford makes sure that one more member of a kind fits the budget. A member of another user who
// has more than this one gives way, and one of a kind that was not asked for recently. The caller
// holds mu.
func (p *Pool[K, M]) afford(of *kind[M]) bool {
	if p.opts.Budget <= 0 {
		return true
	}
	for {
		var memory, number int64
		counts := map[string]int{}
		for _, c := range p.kinds {
			for _, one := range c.ready {
				memory += one.memory
				number++
				counts[one.user]++
			}
		}
		if number == 0 || memory+memory/number <= p.opts.Budget {
			return true
		}
		var from *kind[M]
		for _, c := range p.kinds {
			if c == of || len(c.ready) == 0 || from != nil && !c.used.Before(from.used) {
				continue
			}
			if counts[c.ready[0].user] > counts[of.demand.User]+1 || time.Since(c.used) > recently {
				from = c
			}
		}
		if from == nil {
			return false
		}
		p.dropOne(from)
		from.want = len(from.ready)
	}
}

// tick looks at the kinds from time to time while there are any. The caller holds mu.
func (p *Pool[K, M]) tick() {
	if p.ticks {
		return
	}
	p.ticks = true
	p.wg.Go(func() {
		every := time.NewTicker(window)
		defer every.Stop()
		for {
			select {
			case <-p.ctx.Done():
				return
			case <-every.C:
			}
			p.mu.Lock()
			p.shrink(time.Now())
			p.fill(0)
			more := len(p.kinds) > 0
			p.ticks = more
			p.mu.Unlock()
			if !more {
				return
			}
		}
	})
}

// shrink has kinds want fewer members of which some were not used, forgets kinds that are not asked for, and drops
// members that are of no more use. Kinds of which a member could not be made are tried again. The caller holds mu.
func (p *Pool[K, M]) shrink(now time.Time) {
	for k, of := range p.kinds {
		of.failed = of.failures > maxFailures
		valid, keep := p.opts.Valid == nil || p.opts.Valid(k), keepFor
		if of.demand.Size.Floor > 0 {
			keep = floorFor
		}
		switch {
		case !valid || now.Sub(of.used) > keep:
			of.want = 0
			delete(p.kinds, k)
		case of.low > 0:
			of.want = max(of.want-(of.low+1)/2, of.demand.Size.Floor, 1)
		}
		for len(of.ready) > of.want {
			p.dropOne(of)
		}
		of.low = len(of.ready)
	}
}

// forgetOldest forgets the kind that was not asked for the longest. The caller holds mu.
func (p *Pool[K, M]) forgetOldest() {
	var at K
	var oldest *kind[M]
	for k, of := range p.kinds {
		if oldest == nil || of.used.Before(oldest.used) {
			at, oldest = k, of
		}
	}
	delete(p.kinds, at)
	for len(oldest.ready) > 0 {
		p.dropOne(oldest)
	}
}
