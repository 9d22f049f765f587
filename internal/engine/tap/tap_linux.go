package tap

import (
	"encoding/binary"
	"fmt"
	"net"
	"net/netip"
	"os"
	"runtime"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/cloche-dev/cloche/internal/engine"
)

// Name is what the device is called inside.
const Name = "eth0"

// QuietPath is a file of the namespace that gets the byte '1' before the device is
// made: from then on the kernel would say on it that it speaks IPv6. A kernel without
// IPv6 has no such file.
const QuietPath = "/proc/sys/net/ipv6/conf/default/disable_ipv6"

// Offloads is the argument of TUNSETOFFLOAD: the sums of packets are left to the process that
// carries the frames.
const Offloads = unix.TUN_F_CSUM

// Call is an ioctl with the memory that it reads.
type Call struct {
	Request uintptr
	Arg     []byte
}

// Attach is the call on /dev/net/tun that makes the device in the namespace of the
// calling thread.
func Attach() Call {
	return Call{unix.TUNSETIFF, ifreq(u16(unix.IFF_TAP | unix.IFF_NO_PI | unix.IFF_VNET_HDR))}
}

// Loopback is the call, on a socket as for Setup, that brings the loopback device up.
func Loopback() Call {
	return Call{unix.SIOCSIFFLAGS, ifreqOf("lo", u16(unix.IFF_UP|unix.IFF_RUNNING))}
}

// Setup are the calls, on a socket of the family AF_INET in the namespace, that give
// the device its addresses and bring it up.
func Setup(l *engine.Link) []Call {
	mask := net.CIDRMask(l.Address.Bits(), 32)
	broad := l.Address.Masked().Addr().As4()
	for i := range broad {
		broad[i] |= ^mask[i]
	}
	return []Call{
		{unix.SIOCSIFHWADDR, ifreq(append(u16(unix.ARPHRD_ETHER), l.MAC...))},
		{unix.SIOCSIFMTU, ifreq(binary.NativeEndian.AppendUint32(nil, uint32(l.MTU)))},
		{unix.SIOCSIFADDR, ifreq(sockaddr(l.Address.Addr()))},
		{unix.SIOCSIFNETMASK, ifreq(sockaddr(netip.AddrFrom4([4]byte(mask))))},
		{unix.SIOCSIFBRDADDR, ifreq(sockaddr(netip.AddrFrom4(broad)))},
		{unix.SIOCSIFFLAGS, ifreq(u16(unix.IFF_UP | unix.IFF_RUNNING))},
		{unix.SIOCADDRT, route(l.Gateway)},
		{unix.SIOCSARP, arp(l)},
	}
}

func u16(n int) []byte { return binary.NativeEndian.AppendUint16(nil, uint16(n)) }

func ifreq(data []byte) []byte { return ifreqOf(Name, data) }

// ifreqOf is the argument of the calls on a device.
func ifreqOf(name string, data []byte) []byte {
	b := make([]byte, 40)
	copy(b, name)
	copy(b[16:], data)
	return b
}

// sockaddr is a sockaddr_in.
func sockaddr(a netip.Addr) []byte {
	b := make([]byte, 16)
	binary.NativeEndian.PutUint16(b, unix.AF_INET)
	copy(b[4:], a.AsSlice())
	return b
}

// route is the rtentry of the default route.
func route(gateway netip.Addr) []byte {
	const rtfUp, rtfGateway = 1, 2
	b := make([]byte, 120)
	copy(b[8:], sockaddr(netip.AddrFrom4([4]byte{}))) // to
	copy(b[24:], sockaddr(gateway))
	copy(b[40:], sockaddr(netip.AddrFrom4([4]byte{}))) // mask
	binary.NativeEndian.PutUint16(b[56:], rtfUp|rtfGateway)
	return b
}

// arp is the arpreq that says where the gateway is.
func arp(l *engine.Link) []byte {
	const atfCom, atfPerm = 2, 4
	b := make([]byte, 68)
	copy(b, sockaddr(l.Gateway))
	binary.NativeEndian.PutUint16(b[16:], unix.ARPHRD_ETHER)
	copy(b[18:], l.GatewayMAC)
	binary.NativeEndian.PutUint32(b[32:], atfCom|atfPerm)
	copy(b[52:], Name)
	return b
}

// Make makes the device in the network namespace of the calling thread, which In
// chooses. The caller closes what it returns, which is the device: with its last
// descriptor it is gone.
func Make(l *engine.Link) (*os.File, error) {
	if err := hush(); err != nil {
		return nil, fmt.Errorf("keep IPv6 off the device: %w", err)
	}
	tun, err := os.OpenFile("/dev/net/tun", os.O_RDWR, 0)
	if err != nil {
		return nil, err
	}
	if err := setUp(int(tun.Fd()), l); err != nil {
		tun.Close()
		return nil, err
	}
	return tun, nil
}

func hush() error {
	f, err := os.OpenFile(QuietPath, os.O_WRONLY, 0)
	if os.IsNotExist(err) {
		return nil
	}
	if err != nil {
		return err
	}
	defer f.Close()
	_, err = f.Write([]byte("1"))
	return err
}

func setUp(tun int, l *engine.Link) error {
	if err := ioctl(tun, Attach()); err != nil {
		return fmt.Errorf("make the device: %w", err)
	}
	if err := unix.IoctlSetInt(tun, unix.TUNSETOFFLOAD, Offloads); err != nil {
		return fmt.Errorf("make the device: %w", err)
	}
	sock, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return os.NewSyscallError("socket", err)
	}
	defer unix.Close(sock)
	for _, c := range Setup(l) {
		if err := ioctl(sock, c); err != nil {
			return fmt.Errorf("set up the device, call %#x: %w", c.Request, err)
		}
	}
	return nil
}

func ioctl(fd int, c Call) error {
	_, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), c.Request, uintptr(unsafe.Pointer(&c.Arg[0])))
	if errno != 0 {
		return errno
	}
	return nil
}

// In calls f on a thread that is in the network namespace of a descriptor. It returns
// when f has, whose error is its own.
func In(netns int, f func() error) error {
	done := make(chan error, 1)
	go func() { // ends with f
		runtime.LockOSThread()
		own, err := unix.Open("/proc/thread-self/ns/net", unix.O_RDONLY|unix.O_CLOEXEC, 0)
		if err != nil {
			runtime.UnlockOSThread()
			done <- fmt.Errorf("find the own network namespace: %w", err)
			return
		}
		defer unix.Close(own)
		err = unix.Setns(netns, unix.CLONE_NEWNET)
		if err != nil {
			err = fmt.Errorf("enter the network namespace: %w", err)
		} else {
			err = f()
		}
		// A thread that does not come back ends with this goroutine.
		if unix.Setns(own, unix.CLONE_NEWNET) == nil {
			runtime.UnlockOSThread()
		}
		done <- err
	}()
	return <-done
}

// Raise brings up the loopback device in the network namespace of the calling thread.
func Raise() error {
	sock, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return os.NewSyscallError("socket", err)
	}
	defer unix.Close(sock)
	if err := ioctl(sock, Loopback()); err != nil {
		return fmt.Errorf("bring the loopback up: %w", err)
	}
	return nil
}
