//go:build linux

package netstack

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"sync"

	"golang.org/x/sys/unix"
)

// Journal is a file that has the connections of one link which are there now, so
// that who serves the link after a sudden end can reset them: a sandbox that only
// waits for data would wait indefinitely. The file is mapped memory: a write to it is no system
// call, and stays when this process ends.
type Journal struct {
	path string

	mu   sync.Mutex
	page []byte // nil until the first connection, and after Close
	free []uint16
}

// A connection is eight bytes: the sandbox's port, the port and the address that it
// connects to. One without a port is unused.
const (
	journalEntry = 8
	journalSize  = 8 << 10 // of more connections than a gate has
)

// tuple is one connection as the sandbox sees it.
type tuple struct {
	guest uint16
	to    netip.AddrPort
}

// NewJournal makes a Journal at a path in a directory that is the caller's alone. Its
// file is made with the first connection.
func NewJournal(path string) *Journal { return &Journal{path: path} }

// left are the connections of an earlier life.
func (j *Journal) left() []tuple {
	b, err := os.ReadFile(j.path)
	if err != nil || len(b) > journalSize {
		return nil
	}
	var out []tuple
	for ; len(b) >= journalEntry; b = b[journalEntry:] {
		if guest := binary.BigEndian.Uint16(b); guest != 0 {
			to := netip.AddrPortFrom(netip.AddrFrom4([4]byte(b[4:8])), binary.BigEndian.Uint16(b[2:]))
			out = append(out, tuple{guest, to})
		}
	}
	return out
}

// begin notes a connection; end forgets it. A connection that does not fit
// is not noted.
func (j *Journal) begin(t tuple) (end func()) {
	if j == nil || !t.to.Addr().Is4() {
		return func() {}
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.open() != nil || len(j.free) == 0 {
		return func() {}
	}
	slot := j.free[len(j.free)-1]
	j.free = j.free[:len(j.free)-1]
	entry := j.page[int(slot)*journalEntry:][:journalEntry]
	addr := t.to.Addr().As4()
	copy(entry[4:], addr[:])
	binary.BigEndian.PutUint16(entry[2:], t.to.Port())
	binary.BigEndian.PutUint16(entry, t.guest)
	return func() {
		j.mu.Lock()
		defer j.mu.Unlock()
		if j.page != nil {
			clear(j.page[int(slot)*journalEntry:][:journalEntry])
			j.free = append(j.free, slot)
		}
	}
}

// open maps the file, which is empty then. The caller holds j.mu.
func (j *Journal) open() error {
	if j.page != nil {
		return nil
	}
	f, err := os.OpenFile(j.path, os.O_RDWR|os.O_CREATE|os.O_TRUNC|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return fmt.Errorf("open journal of connections: %w", err)
	}
	defer f.Close()
	// Space that the disk does not have would end this process at a write.
	err = unix.Fallocate(int(f.Fd()), 0, 0, journalSize)
	for errors.Is(err, unix.EINTR) { // on a tmpfs, by any signal
		err = unix.Fallocate(int(f.Fd()), 0, 0, journalSize)
	}
	if err != nil {
		return fmt.Errorf("make journal of connections: %w", err)
	}
	page, err := unix.Mmap(int(f.Fd()), 0, journalSize, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return fmt.Errorf("map journal of connections: %w", err)
	}
	j.page, j.free = page, make([]uint16, 0, journalSize/journalEntry)
	for i := range journalSize / journalEntry {
		j.free = append(j.free, uint16(journalSize/journalEntry-1-i))
	}
	return nil
}

// Close unmaps the file, which stays as it is.
func (j *Journal) Close() error {
	if j == nil {
		return nil
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.page == nil {
		return nil
	}
	err := unix.Munmap(j.page)
	j.page, j.free = nil, nil
	if err != nil {
		return fmt.Errorf("unmap journal of connections: %w", err)
	}
	return nil
}

// probe is a frame that makes a sandbox say what it thinks of a connection: its
// number is one that no connection expects, so the sandbox answers with its own,
// and is told by our stack that there is no such connection.
func (p Plan) probe(t tuple) []byte {
	const tcpHeader, flagACK = 20, 0x10
	f := make([]byte, etherHeader+ipHeader+tcpHeader)
	copy(f, p.GuestMAC)
	copy(f[6:], p.GatewayMAC)
	binary.BigEndian.PutUint16(f[12:], etherIPv4)
	ip, tcp := f[etherHeader:], f[etherHeader+ipHeader:]
	from, to := t.to.Addr().As4(), p.Guest.Addr().As4()
	ip[0], ip[8], ip[9] = 4<<4|ipHeader/4, 64, unix.IPPROTO_TCP
	binary.BigEndian.PutUint16(ip[2:], ipHeader+tcpHeader)
	copy(ip[12:], from[:])
	copy(ip[16:], to[:])
	binary.BigEndian.PutUint16(ip[10:], ^sum(ip[:ipHeader], 0))
	binary.BigEndian.PutUint16(tcp, t.to.Port())
	binary.BigEndian.PutUint16(tcp[2:], t.guest)
	tcp[12], tcp[13] = tcpHeader/4<<4, flagACK
	// Of the header that stands for the addresses in the sum of a segment.
	pseudo := sum(ip[12:20], unix.IPPROTO_TCP+tcpHeader)
	binary.BigEndian.PutUint16(tcp[16:], ^sum(tcp[:tcpHeader], uint32(pseudo)))
	return f
}

// sum is the checksum of the internet, before its complement.
func sum(b []byte, s uint32) uint16 {
	for ; len(b) > 1; b = b[2:] {
		s += uint32(binary.BigEndian.Uint16(b))
	}
	for s > 0xffff {
		s = s&0xffff + s>>16
	}
	return uint16(s)
}

// resetLeft resets the connections of an earlier life of the link.
func (l *Link) resetLeft(left []tuple) error {
	raw, err := l.file.SyscallConn()
	if err != nil {
		return err
	}
	for _, t := range left {
		var werr error
		err := raw.Control(func(fd uintptr) {
			werr = unix.Send(int(fd), l.gateway.plan.probe(t), unix.MSG_DONTWAIT|unix.MSG_NOSIGNAL)
		})
		if err = errors.Join(err, werr); err != nil && !errors.Is(err, unix.EAGAIN) {
			return fmt.Errorf("reset a connection of before: %w", err)
		}
	}
	return nil
}
