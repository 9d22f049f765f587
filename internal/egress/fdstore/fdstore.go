//go:build linux

// Package fdstore is a tiny process that keeps descriptors of network links while
// no daemon runs, and the daemon's side of it. The fd store decides nothing and reads
// no packet: it gives what it was given to a process that may open its socket.
package fdstore

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/peercred"
)

// Argv0 is the name under which the executable plays the fd store.
const Argv0 = "cloche-holder"

const (
	// socketName is the name of the socket in the owner's directory.
	socketName = "links.sock"
	// maxMessage bounds a message; Keep sends its ids in several.
	maxMessage = 16 << 10
	// maxLinks bounds what one fd store keeps.
	maxLinks = 16384
)

// A message is a verb and ids, each ended by a zero byte; put brings a descriptor
// and the answer to take does. An answer is a word, or a sentence on what is wrong.
const (
	verbPut  = "put"
	verbTake = "take"
	verbDrop = "drop"
	verbList = "list"

	wordOK   = "ok"
	wordMore = "more" // before ids of a list that goes on
	wordNone = "none"
)

// ErrNone says that the fd store has no such link.
var ErrNone = errors.New("the holder has no such link")

func encode(words ...string) []byte {
	var b bytes.Buffer
	for _, w := range words {
		b.WriteString(w)
		b.WriteByte(0)
	}
	return b.Bytes()
}

func decode(b []byte) ([]string, error) {
	if len(b) == 0 || b[len(b)-1] != 0 {
		return nil, errors.New("a message is not whole")
	}
	words := strings.Split(string(b[:len(b)-1]), "\x00")
	for _, w := range words[1:] {
		if !api.ValidName(w) {
			return nil, errors.New("an id in a message is not valid")
		}
	}
	return words, nil
}

// send writes one message, with at most one descriptor.
func send(fd int, msg []byte, file *os.File) error {
	var rights []byte
	if file != nil {
		raw, err := file.SyscallConn()
		if err != nil {
			return err
		}
		var serr error
		err = raw.Control(func(n uintptr) {
			rights = unix.UnixRights(int(n))
			serr = retry(func() error { return unix.Sendmsg(fd, msg, rights, nil, unix.MSG_NOSIGNAL) })
		})
		return errors.Join(err, serr)
	}
	return retry(func() error { return unix.Sendmsg(fd, msg, nil, nil, unix.MSG_NOSIGNAL) })
}

func retry(f func() error) error {
	for {
		if err := f(); !errors.Is(err, unix.EINTR) {
			return err
		}
	}
}

var errEnded = errors.New("the connection has ended")

// receive reads one message and the descriptor that came with it, which is nil when
// none did. More than one is refused, and none is left open.
func receive(fd int) (words []string, file *os.File, err error) {
	buf, oob := make([]byte, maxMessage), make([]byte, unix.CmsgSpace(4*4))
	var n, oobn, flags int
	err = retry(func() (err error) {
		n, oobn, flags, _, err = unix.Recvmsg(fd, buf, oob, unix.MSG_CMSG_CLOEXEC)
		return err
	})
	if err != nil {
		return nil, nil, os.NewSyscallError("recvmsg", err)
	}
	fds, err := rights(oob[:oobn])
	defer func() {
		if err != nil {
			for _, fd := range fds {
				_ = unix.Close(fd)
			}
			file = nil
		}
	}()
	switch {
	case err != nil:
		return nil, nil, err
	case n == 0:
		return nil, nil, errEnded
	case flags&(unix.MSG_TRUNC|unix.MSG_CTRUNC) != 0 || len(fds) > 1:
		return nil, nil, errors.New("a message is too long")
	}
	if words, err = decode(buf[:n]); err != nil {
		return nil, nil, err
	}
	if len(fds) == 1 {
		// Another holder may have changed that, and blocking calls have no deadlines.
		if err = unix.SetNonblock(fds[0], true); err != nil {
			return nil, nil, os.NewSyscallError("fcntl", err)
		}
		file = os.NewFile(uintptr(fds[0]), "link")
	}
	return words, file, nil
}

func rights(oob []byte) ([]int, error) {
	if len(oob) == 0 {
		return nil, nil
	}
	msgs, err := unix.ParseSocketControlMessage(oob)
	if err != nil {
		return nil, fmt.Errorf("read descriptors: %w", err)
	}
	var all []int
	for i := range msgs {
		fds, err := unix.ParseUnixRights(&msgs[i])
		if err != nil {
			continue // credentials, which were not requested
		}
		all = append(all, fds...)
	}
	return all, nil
}

// sameUser reports whether the process that listens at the other end is this user's. It
// may have ended: the kernel notes who called listen, which was a daemon.
func sameUser(fd int) bool {
	cred, err := unix.GetsockoptUcred(fd, unix.SOL_SOCKET, unix.SO_PEERCRED)
	return err == nil && int(cred.Uid) == os.Geteuid()
}

// samePeer reports whether the process that connected is this user's, in the namespaces
// of this process: root in a sandbox may have the same uid.
func samePeer(fd int) bool {
	uid, err := peercred.UIDOf(fd)
	return err == nil && uid == os.Geteuid()
}
