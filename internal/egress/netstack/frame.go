//go:build linux

package netstack

import (
	"encoding/binary"
	"net/netip"
)

// What stands in front of a packet.
const (
	etherHeader = 14
	ipHeader    = 20
	etherIPv4   = 0x0800
	etherARP    = 0x0806
	protoICMP   = 1
	icmpEcho    = 8
)

// kind is what a frame from a sandbox is to us.
type kind uint8

const (
	drop kind = iota // not answered: invalid, or without a receiver
	packet
	neighbour
)

// sort looks at a frame before the stack does. The stack need not see another
// family of addresses, a forged source, options, fragments, what goes to many, or
// ICMP: it would answer for addresses that do not exist.
func (p Plan) sort(frame []byte) kind {
	if len(frame) < etherHeader {
		return drop
	}
	ours := [6]byte(frame[:6]) == [6]byte(p.GatewayMAC)
	switch binary.BigEndian.Uint16(frame[12:]) {
	case etherARP:
		if ours || [6]byte(frame[:6]) == [6]byte{0xff, 0xff, 0xff, 0xff, 0xff, 0xff} {
			return neighbour
		}
		return drop
	case etherIPv4:
	default:
		return drop
	}
	b := frame[etherHeader:]
	if !ours || len(b) < ipHeader || b[0] != 4<<4|ipHeader/4 {
		return drop
	}
	if binary.BigEndian.Uint16(b[6:])&0x3fff != 0 { // a fragment: packets are as large as they can be
		return drop
	}
	src, dst := netip.AddrFrom4([4]byte(b[12:])), netip.AddrFrom4([4]byte(b[16:]))
	if src != p.Guest.Addr() || dst == src || dst.IsMulticast() || dst.IsLoopback() || dst.IsUnspecified() || b[16] >= 240 {
		return drop
	}
	if b[9] == protoICMP && (dst != p.Gateway || len(b) <= ipHeader || b[ipHeader] != icmpEcho) {
		return drop
	}
	return packet
}
