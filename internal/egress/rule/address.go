package rule

import "net/netip"

// reserved is a range of addresses that is not the public internet.
type reserved struct {
	prefix netip.Prefix
	class  string
}

// Class says why addr is not an address of the public internet, in a few words,
// or nothing when it is one. It knows the forms in which an IPv6 address carries
// an IPv4 one, which are never public here, whatever they carry: they are not
// needed, and each has been used to bypass a list.
func Class(addr netip.Addr) string {
	switch {
	case !addr.IsValid():
		return "no address"
	case addr.Zone() != "":
		return "an address of one interface"
	case addr.Is4In6():
		return "an IPv4 address written as IPv6"
	}
	ranges := reserved4
	if addr.Is6() {
		ranges = reserved6
	}
	for _, r := range ranges() {
		if r.prefix.Contains(addr) {
			return r.class
		}
	}
	if addr.Is6() && !global6().Contains(addr) {
		return "an address outside the public range of IPv6"
	}
	return ""
}

func global6() netip.Prefix { return netip.PrefixFrom(netip.AddrFrom16([16]byte{0x20}), 3) }

// v4 keeps the tables free of parsing: Class is on the way of every connection.
func v4(a, b, c, d byte, bits int, class string) reserved {
	return reserved{netip.PrefixFrom(netip.AddrFrom4([4]byte{a, b, c, d}), bits), class}
}

func v6(hi uint64, bits int, class string) reserved {
	var a [16]byte
	for i := range 8 {
		a[i] = byte(hi >> (56 - 8*i))
	}
	return reserved{netip.PrefixFrom(netip.AddrFrom16(a), bits), class}
}

// reserved4 is the registry of special addresses, and the metadata services that
// clouds put elsewhere. The first that fits names the class.
func reserved4() []reserved {
	return []reserved{
		v4(169, 254, 169, 254, 32, "a cloud's metadata service"),
		v4(169, 254, 170, 2, 32, "a cloud's metadata service"),
		v4(100, 100, 100, 200, 32, "a cloud's metadata service"),
		v4(192, 0, 0, 192, 32, "a cloud's metadata service"),
		v4(168, 63, 129, 16, 32, "a cloud's metadata service"),
		v4(0, 0, 0, 0, 8, "this network"),
		v4(10, 0, 0, 0, 8, "a private address"),
		v4(100, 64, 0, 0, 10, "a provider's shared address"),
		v4(127, 0, 0, 0, 8, "loopback"),
		v4(169, 254, 0, 0, 16, "link-local"),
		v4(172, 16, 0, 0, 12, "a private address"),
		v4(192, 0, 0, 0, 24, "a protocol's own address"),
		v4(192, 0, 2, 0, 24, "a documentation address"),
		v4(192, 31, 196, 0, 24, "a protocol's own address"),
		v4(192, 52, 193, 0, 24, "a protocol's own address"),
		v4(192, 88, 99, 0, 24, "a relay of IPv6 over IPv4"),
		v4(192, 168, 0, 0, 16, "a private address"),
		v4(192, 175, 48, 0, 24, "a protocol's own address"),
		v4(198, 18, 0, 0, 15, "a benchmarking address"),
		v4(198, 51, 100, 0, 24, "a documentation address"),
		v4(203, 0, 113, 0, 24, "a documentation address"),
		v4(224, 0, 0, 0, 4, "multicast"),
		v4(240, 0, 0, 0, 4, "a reserved address"),
	}
}

// reserved6 names ranges outside 2000::/3 as well, for their description.
func reserved6() []reserved {
	return []reserved{
		{netip.PrefixFrom(netip.IPv6Unspecified(), 128), "no address"},
		{netip.PrefixFrom(netip.IPv6Loopback(), 128), "loopback"},
		{netip.PrefixFrom(netip.IPv6Unspecified(), 96), "an IPv4 address written as IPv6"},
		v6(0x0064_ff9b_0000_0000, 96, "an IPv4 address behind NAT64"),
		v6(0x0064_ff9b_0001_0000, 48, "an IPv4 address behind NAT64"),
		v6(0x0100_0000_0000_0000, 64, "a discard address"),
		v6(0x2001_0000_0000_0000, 32, "an IPv4 address behind Teredo"),
		v6(0x2001_0000_0000_0000, 23, "a protocol's own address"),
		v6(0x2001_0db8_0000_0000, 32, "a documentation address"),
		v6(0x2002_0000_0000_0000, 16, "an IPv4 address behind 6to4"),
		v6(0x2620_004f_8000_0000, 48, "a protocol's own address"),
		v6(0x3fff_0000_0000_0000, 20, "a documentation address"),
		v6(0x5f00_0000_0000_0000, 16, "a protocol's own address"),
		v6(0xfd00_0ec2_0000_0000, 32, "a cloud's metadata service"),
		v6(0xfc00_0000_0000_0000, 7, "a private address"),
		v6(0xfe80_0000_0000_0000, 10, "link-local"),
		v6(0xfec0_0000_0000_0000, 10, "a private address"),
		v6(0xff00_0000_0000_0000, 8, "multicast"),
	}
}
