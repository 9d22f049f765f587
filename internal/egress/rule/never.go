package rule

import (
	"net/netip"
	"slices"
)

// Never is true for addresses that are no target whatever a rule says: metadata
// services of clouds, link-local ones, and what is no address of one machine.
func Never(a netip.Addr) bool {
	return !a.IsValid() || a.Zone() != "" || a.Is4In6() || a.IsUnspecified() || a.IsMulticast() || a.IsLinkLocalUnicast() ||
		slices.Contains(metadata(), a)
}

// metadata are services that clouds put at other than link-local addresses.
func metadata() []netip.Addr {
	return []netip.Addr{
		netip.AddrFrom4([4]byte{100, 100, 100, 200}), netip.AddrFrom4([4]byte{192, 0, 0, 192}), netip.AddrFrom4([4]byte{168, 63, 129, 16}),
		netip.AddrFrom16([16]byte{0xfd, 0, 0x0e, 0xc2, 14: 0x02, 15: 0x54}),
	}
}
