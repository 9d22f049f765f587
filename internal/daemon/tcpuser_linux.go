package daemon

import (
	"bufio"
	"encoding/hex"
	"fmt"
	"net/netip"
	"os"
	"strconv"
	"strings"
)

// knowsPeers: the kernel tells to whom the other end of a connection of this machine
// belongs.
const knowsPeers = true

// tcpEstablished is the state of a connection in /proc/net/tcp whose both ends are open.
const tcpEstablished = "01"

// sameUser says why the other end of a TCP connection of this machine is not one of this
// process's own user, or of root; nil is that it is.
func sameUser(local, remote string) error {
	us, err := netip.ParseAddrPort(local)
	if err != nil {
		return fmt.Errorf("read the address of a connection: %w", err)
	}
	them, err := netip.ParseAddrPort(remote)
	if err != nil {
		return fmt.Errorf("read the address of a connection: %w", err)
	}
	uid, err := tcpUser(them, us)
	switch {
	case err != nil:
		return err
	case uid != 0 && uid != os.Geteuid():
		return fmt.Errorf("it belongs to user %d", uid)
	}
	return nil
}

// tcpUser is the user who made the socket from the address from to the address to, as
// this network namespace has it.
func tcpUser(from, to netip.AddrPort) (int, error) {
	for _, list := range []string{"/proc/net/tcp", "/proc/net/tcp6"} {
		f, err := os.Open(list)
		if err != nil {
			continue // a machine without IPv6 has one list
		}
		lines := bufio.NewScanner(f)
		for lines.Scan() {
			if uid, ok := tcpLine(lines.Text(), from, to); ok {
				_ = f.Close()
				return uid, nil
			}
		}
		err = lines.Err()
		_ = f.Close()
		if err != nil {
			return 0, fmt.Errorf("read %s: %w", list, err)
		}
	}
	return 0, fmt.Errorf("no process of this machine is known to have it")
}

// tcpLine is the user of the socket that a line of /proc/net/tcp tells of, if it goes from
// one address to another. A socket that its process has closed has no inode, and its user
// is told as 0.
func tcpLine(line string, from, to netip.AddrPort) (uid int, ok bool) {
	f := strings.Fields(line)
	if len(f) < 10 || f[3] != tcpEstablished || f[9] == "0" {
		return 0, false
	}
	local, err := tcpAddr(f[1])
	if err != nil || !sameAddr(local, from) {
		return 0, false
	}
	remote, err := tcpAddr(f[2])
	if err != nil || !sameAddr(remote, to) {
		return 0, false
	}
	uid, err = strconv.Atoi(f[7])
	return uid, err == nil
}

func sameAddr(a, b netip.AddrPort) bool {
	return a.Port() == b.Port() && a.Addr().Unmap() == b.Addr().Unmap().WithZone("")
}

// tcpAddr reads an address of /proc/net/tcp: words of four bytes, each in the order of
// the processor, which is little-endian on all that Cloche is built for.
func tcpAddr(s string) (netip.AddrPort, error) {
	host, port, _ := strings.Cut(s, ":")
	raw, err := hex.DecodeString(host)
	if err != nil || len(raw)%4 != 0 {
		return netip.AddrPort{}, fmt.Errorf("read the address %q", s)
	}
	for i := 0; i < len(raw); i += 4 {
		raw[i], raw[i+1], raw[i+2], raw[i+3] = raw[i+3], raw[i+2], raw[i+1], raw[i]
	}
	addr, ok := netip.AddrFromSlice(raw)
	n, err := strconv.ParseUint(port, 16, 16)
	if !ok || err != nil {
		return netip.AddrPort{}, fmt.Errorf("read the address %q", s)
	}
	return netip.AddrPortFrom(addr, uint16(n)), nil
}
