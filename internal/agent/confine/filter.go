//go:build linux && (amd64 || arm64)

package confine

import (
	"cmp"
	"errors"
	"slices"

	"golang.org/x/sys/unix"
)

// Offsets in what a filter sees of a call.
const (
	offNumber = 0
	offArch   = 4
	offArgs   = 16
)

// program is a filter that is being written.
type program struct {
	code []unix.SockFilter
	err  error
}

func (p *program) add(code uint16, k uint32, jt, jf int) {
	if jt > 255 || jf > 255 {
		p.err = errors.New("a jump of the filter is too long")
	}
	p.code = append(p.code, unix.SockFilter{Code: code, K: k, Jt: uint8(jt), Jf: uint8(jf)})
}

func (p *program) load(at uint32) { p.add(unix.BPF_LD|unix.BPF_W|unix.BPF_ABS, at, 0, 0) }

// low loads the lower half of an argument. The upper half says nothing where the
// kernel takes an int.
func (p *program) low(arg uint32) { p.load(offArgs + 8*arg) }

func (p *program) ret(v uint32)               { p.add(unix.BPF_RET|unix.BPF_K, v, 0, 0) }
func (p *program) fail(e unix.Errno)          { p.ret(unix.SECCOMP_RET_ERRNO | uint32(e)) }
func (p *program) equal(k uint32, jt, jf int) { p.add(unix.BPF_JMP|unix.BPF_JEQ|unix.BPF_K, k, jt, jf) }
func (p *program) ifAny(bits uint32, e unix.Errno) {
	p.add(unix.BPF_JMP|unix.BPF_JSET|unix.BPF_K, bits, 0, 1)
	p.fail(e)
}

func (p *program) ifIn(e unix.Errno, list ...uint32) {
	for i, k := range list {
		p.equal(k, len(list)-i, 0)
	}
	p.add(unix.BPF_JMP|unix.BPF_JA, 1, 0, 0)
	p.fail(e)
}

func (p *program) ifNotIn(e unix.Errno, list ...uint32) {
	for i, k := range list {
		p.equal(k, len(list)-i, 0)
	}
	p.fail(e)
}

// allowIf lets the call through when the value is k.
func (p *program) allowIf(k uint32) {
	p.equal(k, 0, 1)
	p.ret(unix.SECCOMP_RET_ALLOW)
}

// allowUnless lets the call through when the value has none of the bits.
func (p *program) allowUnless(bits uint32) {
	p.add(unix.BPF_JMP|unix.BPF_JSET|unix.BPF_K, bits, 1, 0)
	p.ret(unix.SECCOMP_RET_ALLOW)
}

// branch does what then adds when the value is k, and then lets the call through.
func (p *program) branch(k uint32, then func()) {
	at := len(p.code)
	p.equal(k, 0, 0)
	then()
	p.ret(unix.SECCOMP_RET_ALLOW)
	if n := len(p.code) - at - 1; n > 255 {
		p.err = errors.New("a jump of the filter is too long")
	} else {
		p.code[at].Jf = uint8(n)
	}
}

// ifAgent fails where the value is the number of one of the agent's threads.
func (p *program) ifAgent(t Threads, e unix.Errno) {
	if t.Last == 0 {
		return
	}
	p.add(unix.BPF_JMP|unix.BPF_JGE|unix.BPF_K, t.First, 0, 2)
	p.add(unix.BPF_JMP|unix.BPF_JGT|unix.BPF_K, t.Last, 1, 0)
	p.fail(e)
}

// span is a range of numbers with one action.
type span struct {
	first, last uint32
	what        action
}

// asking says for which calls the agent is asked: those that give a file its mode, and
// setns.
type asking struct{ modes, joins bool }

// filter is the profile as the kernel takes it, for programs of an agent with these threads.
func filter(agent Threads, asks asking) ([]unix.SockFilter, error) {
	p := &program{}
	p.load(offArch)
	p.equal(auditArch, 1, 0)
	p.fail(unix.ENOSYS)
	p.load(offNumber)
	if foreign != 0 {
		p.add(unix.BPF_JMP|unix.BPF_JGE|unix.BPF_K, foreign, 0, 1)
		p.fail(unix.ENOSYS)
	}
	for _, r := range rules(agent, asks.modes) {
		p.branch(r.nr, func() { r.code(p) })
	}
	if asks.joins {
		p.branch(unix.SYS_SETNS, func() { p.ret(unix.SECCOMP_RET_USER_NOTIF) })
	}
	p.tree(spans())
	return p.code, p.err
}

// spans are the calls that need no look at their arguments, in order.
func spans() []span {
	var all []span
	for what, list := range map[action][]named{allowed: slices.Concat(common[:], native[:]), refused: refusals[:]} {
		for _, c := range list {
			all = append(all, span{c.nr, c.nr, what})
		}
	}
	slices.SortFunc(all, func(a, b span) int { return cmp.Compare(a.first, b.first) })
	var out []span
	for _, s := range all {
		if n := len(out); n > 0 && out[n-1].what == s.what && out[n-1].last+1 == s.first {
			out[n-1].last = s.last
		} else {
			out = append(out, s)
		}
	}
	return out
}

// tree finds the span of a number by halves.
func (p *program) tree(list []span) {
	if len(list) > 1 {
		half := len(list) / 2
		at := len(p.code)
		// Not by the jump's own field, which may be too short for the first half.
		p.add(unix.BPF_JMP|unix.BPF_JGE|unix.BPF_K, list[half].first, 0, 1)
		p.add(unix.BPF_JMP|unix.BPF_JA, 0, 0, 0)
		p.tree(list[:half])
		p.code[at+1].K = uint32(len(p.code) - at - 2)
		p.tree(list[half:])
		return
	}
	s := list[0]
	p.add(unix.BPF_JMP|unix.BPF_JGE|unix.BPF_K, s.first, 0, 2)
	p.add(unix.BPF_JMP|unix.BPF_JGT|unix.BPF_K, s.last, 1, 0)
	if s.what == allowed {
		p.ret(unix.SECCOMP_RET_ALLOW)
	} else {
		p.fail(unix.EPERM)
	}
	p.fail(unix.ENOSYS)
}
