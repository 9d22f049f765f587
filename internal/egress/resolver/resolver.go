package resolver

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"strings"

	"github.com/cloche-dev/cloche/internal/egress/rule"
	"github.com/miekg/dns"
)

// TTL is how long an answer may be kept, in seconds. The address of a name never
// changes, so this is only how soon a change of rules is felt as a refusal of
// the name; a refusal of the flow comes at once.
const TTL = 30

// maxExtra keeps an answer with its reason below 512 bytes, which every client
// takes. Reasons are ASCII.
const maxExtra = 160

// udpSize is what we say we take by UDP; answers are far smaller.
const udpSize = 1232

// Resolver answers for one sandbox. Its methods may be called by any number of
// goroutines.
type Resolver struct {
	Table *Table
	// Rules are those in force now.
	Rules func() *rule.Set
	// Ask reports whether names that no rule covers are answered as well, because their
	// connections ask. Nil is no.
	Ask func() bool
	// Refused is told of each question that was refused for its name, which is as
	// it was asked; it may be nil.
	Refused func(name string, r *rule.Refusal)
}

// Answer makes the answer to one message; nil if it gets no answer. It
// never fails: what is wrong with a message is in the answer.
func (r *Resolver) Answer(query []byte) []byte {
	if len(query) < 12 || query[2]&0x80 != 0 { // an answer is not answered
		return nil
	}
	var q dns.Msg
	if err := q.Unpack(query); err != nil || len(q.Question) != 1 || len(q.Answer) > 0 || len(q.Ns) > 0 {
		return header(query, dns.RcodeFormatError)
	}
	if q.Opcode != dns.OpcodeQuery {
		return header(query, dns.RcodeNotImplemented)
	}
	a := new(dns.Msg).SetReply(&q)
	a.RecursionAvailable = true
	var ede *dns.EDNS0_EDE
	if opt := q.IsEdns0(); opt != nil && opt.Version() != 0 {
		a.Rcode = dns.RcodeBadVers
	} else if ref := r.judge(a); ref != nil {
		a.Rcode, a.Answer = dns.RcodeRefused, nil
		ede = &dns.EDNS0_EDE{InfoCode: dns.ExtendedErrorCodeFiltered, ExtraText: ref.Reason}
		if ref.Allow != "" {
			ede.ExtraText += "; allow: " + ref.Allow
		}
		ede.ExtraText = ede.ExtraText[:min(len(ede.ExtraText), maxExtra)]
	}
	if q.IsEdns0() != nil {
		a.SetEdns0(udpSize, false)
		if opt := a.IsEdns0(); ede != nil {
			opt.Option = append(opt.Option, ede)
		}
	}
	out, err := a.Pack()
	if err != nil {
		return header(query, dns.RcodeServerFailure)
	}
	return out
}

// header is an answer that has only a code, for a message that need not have
// been understood.
func header(query []byte, code int) []byte {
	out := make([]byte, 12)
	copy(out, query[:2])
	binary.BigEndian.PutUint16(out[2:], 1<<15|binary.BigEndian.Uint16(query[2:])&0x7900|1<<7|uint16(code))
	return out
}

// judge fills in the answer to the one question of a, or says why it has none.
func (r *Resolver) judge(a *dns.Msg) *rule.Refusal {
	q := a.Question[0]
	if q.Qclass != dns.ClassINET {
		return r.refuse(q.Name, &rule.Refusal{Rule: rule.RuleProtocol, Reason: "only questions of the class IN are answered"})
	}
	if name, ok := r.reverse(q.Name); ok {
		if q.Qtype == dns.TypePTR {
			a.Answer = append(a.Answer, &dns.PTR{Hdr: dns.RR_Header{Name: q.Name, Rrtype: dns.TypePTR, Class: dns.ClassINET, Ttl: TTL}, Ptr: string(name) + "."})
		}
		return nil
	}
	asked := q.Name
	if q.Qtype != dns.TypeA {
		asked = host(asked)
	}
	// The library shows what is no plain text as escapes, and the grammar knows no
	// backslash: a label that holds a dot or a NUL is refused here.
	n, err := rule.ParseName(asked)
	if e, ok := errors.AsType[*rule.NameError](err); ok {
		return r.refuse(q.Name, &rule.Refusal{Rule: rule.RuleName, Reason: e.Error()})
	}
	if ref := r.Rules().Name(n); ref != nil && (ref.Rule != rule.RuleName || r.Ask == nil || !r.Ask()) {
		return r.refuse(q.Name, ref)
	}
	if q.Qtype != dns.TypeA {
		return nil // the name exists and has nothing else
	}
	addr, err := r.Table.Address(n)
	switch {
	case errors.Is(err, ErrFull):
		return r.refuse(q.Name, &rule.Refusal{Rule: rule.RuleBudget, Reason: fmt.Sprintf("this sandbox has asked for %d names, which is all it may", MaxNames)})
	case err != nil:
		return r.refuse(q.Name, &rule.Refusal{Rule: rule.RuleName, Reason: "the name could not be stored, so it cannot be answered"})
	}
	v4 := addr.As4()
	a.Answer = append(a.Answer, &dns.A{Hdr: dns.RR_Header{Name: q.Name, Rrtype: dns.TypeA, Class: dns.ClassINET, Ttl: TTL}, A: v4[:]})
	return nil
}

func (r *Resolver) refuse(name string, ref *rule.Refusal) *rule.Refusal {
	if r.Refused != nil {
		r.Refused(name, ref)
	}
	return ref
}

// host is the host of a question about one of its services, such as
// _http._tcp.example.com: clients ask for those beside the address, and the host
// is what the list speaks of.
func host(name string) string {
	for strings.HasPrefix(name, "_") {
		_, rest, ok := strings.Cut(name, ".")
		if !ok {
			break
		}
		name = rest
	}
	return name
}

// reverse is the name behind a question for one of our addresses.
func (r *Resolver) reverse(q string) (rule.Name, bool) {
	rest, ok := strings.CutSuffix(strings.ToLower(q), ".in-addr.arpa.")
	if !ok || len(rest) > len("255.255.255.255") {
		return "", false
	}
	var b [4]string
	parts := strings.Split(rest, ".")
	if len(parts) != len(b) {
		return "", false
	}
	for i, p := range parts {
		b[3-i] = p
	}
	addr, err := netip.ParseAddr(strings.Join(b[:], "."))
	if err != nil {
		return "", false
	}
	return r.Table.Name(addr)
}
