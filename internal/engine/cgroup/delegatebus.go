//go:build linux

package cgroup

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/url"
	"os"
	"strconv"
	"strings"
	"syscall"

	"github.com/godbus/dbus/v5"
)

// bus is a message bus on which a systemd may be.
type bus struct {
	name    string // for people, without the machine's paths
	address string // as the specification of D-Bus writes it
}

// findBuses are the buses of this user's systemd, or for root of the system,
// the likeliest first.
func findBuses(root bool, getenv func(string) string) []bus {
	var buses []bus
	add := func(name, address string) {
		for _, b := range buses {
			if b.address == address {
				return
			}
		}
		buses = append(buses, bus{name, address})
	}
	if root {
		if a := getenv("DBUS_SYSTEM_BUS_ADDRESS"); a != "" {
			add("$DBUS_SYSTEM_BUS_ADDRESS", a)
		}
		add("the system bus", "unix:path=/run/dbus/system_bus_socket")
		return buses
	}
	if dir := getenv("XDG_RUNTIME_DIR"); dir != "" {
		add("$XDG_RUNTIME_DIR/bus", "unix:path="+url.PathEscape(dir)+"/bus")
	}
	if a := getenv("DBUS_SESSION_BUS_ADDRESS"); a != "" {
		add("$DBUS_SESSION_BUS_ADDRESS", a)
	}
	uid := strconv.Itoa(os.Geteuid())
	add("/run/user/"+uid+"/bus", "unix:path="+url.PathEscape("/run/user/"+uid)+"/bus")
	return buses
}

// maxAddress bounds an address of a bus.
const maxAddress = 4096

// sockets are the Unix sockets of an address, in its order: abstract ones begin
// with @. Other transports are passed over: systemd listens on none.
func sockets(address string) []string {
	if len(address) > maxAddress {
		return nil
	}
	var list []string
	for one := range strings.SplitSeq(address, ";") {
		params, ok := strings.CutPrefix(one, "unix:")
		if !ok {
			continue
		}
		for param := range strings.SplitSeq(params, ",") {
			key, value, _ := strings.Cut(param, "=")
			value, err := url.PathUnescape(value)
			if err != nil || value == "" || strings.ContainsRune(value, 0) {
				continue
			}
			switch key {
			case "path":
				if value[0] == '/' {
					list = append(list, value)
				}
			case "abstract":
				list = append(list, "@"+value)
			}
		}
	}
	return list
}

// scope is a transient scope to be started.
type scope struct {
	name  string
	slice string
	pid   int
}

const (
	systemdName    = "org.freedesktop.systemd1"
	systemdPath    = dbus.ObjectPath("/org/freedesktop/systemd1")
	systemdManager = systemdName + ".Manager"
)

var (
	errNoSocket = errors.New("its address names no Unix socket")
	errBusEnded = errors.New("the bus hung up")
)

// jobError is a job of systemd's that did not end well.
type jobError string

func (e jobError) Error() string { return fmt.Sprintf("systemd's job ended as %q", string(e)) }

// startScope asks the systemd on the bus for a scope, and returns when the
// process is in it. It takes no longer than the context lives.
func (b bus) startScope(ctx context.Context, s scope) error {
	conn, err := b.connect(ctx)
	if err != nil {
		return err
	}
	defer conn.Close()
	// Systemd answers when the job is queued, and signals when it is done. A
	// subscription before the call does not miss it.
	signals := make(chan *dbus.Signal, 64)
	conn.Signal(signals)
	err = conn.AddMatchSignalContext(ctx, dbus.WithMatchSender(systemdName),
		dbus.WithMatchObjectPath(systemdPath), dbus.WithMatchInterface(systemdManager), dbus.WithMatchMember("JobRemoved"))
	if err != nil {
		return err
	}
	type property struct {
		Name  string
		Value dbus.Variant
	}
	type unit struct {
		Name       string
		Properties []property
	}
	properties := []property{
		{"Description", dbus.MakeVariant("Sandboxes of cloche")},
		{"Slice", dbus.MakeVariant(s.slice)},
		{"Delegate", dbus.MakeVariant(true)},
		{"PIDs", dbus.MakeVariant([]uint32{uint32(s.pid)})},
	}
	var job dbus.ObjectPath
	err = conn.Object(systemdName, systemdPath).CallWithContext(ctx, systemdManager+".StartTransientUnit", 0,
		s.name, "fail", properties, []unit{}).Store(&job)
	if err != nil {
		return err
	}
	for {
		select {
		case signal, ok := <-signals:
			if !ok {
				return errBusEnded
			}
			if result, ok := jobResult(signal, job); ok {
				if result != "done" {
					return jobError(result)
				}
				return nil
			}
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// jobResult is how the job ended, if the signal is about that.
func jobResult(signal *dbus.Signal, job dbus.ObjectPath) (string, bool) {
	if signal.Name != systemdManager+".JobRemoved" || len(signal.Body) != 4 {
		return "", false
	}
	path, _ := signal.Body[1].(dbus.ObjectPath)
	result, ok := signal.Body[3].(string)
	return result, ok && path == job
}

// connect dials the bus itself, and the end of the context closes the connection:
// so it bounds every read and write from the first on, whatever listens there.
func (b bus) connect(ctx context.Context) (*dbus.Conn, error) {
	err := errNoSocket
	for _, socket := range sockets(b.address) {
		var c net.Conn
		if c, err = (&net.Dialer{}).DialContext(ctx, "unix", socket); err != nil {
			continue
		}
		var conn *dbus.Conn
		if conn, err = dbus.NewConn(c, dbus.WithContext(ctx)); err != nil {
			c.Close()
			continue
		}
		err = conn.Auth([]dbus.Auth{dbus.AuthExternal(strconv.Itoa(os.Geteuid()))})
		if err == nil {
			err = conn.Hello()
		}
		if err == nil {
			return conn, nil
		}
		conn.Close()
	}
	return nil, err
}

// busErrText is an error for people: without paths, and of no more than a line.
func busErrText(err error) string {
	if errno, ok := errors.AsType[syscall.Errno](err); ok {
		return errno.Error()
	}
	if errors.Is(err, os.ErrDeadlineExceeded) || errors.Is(err, context.DeadlineExceeded) {
		return "no answer in time"
	}
	if op, ok := errors.AsType[*net.OpError](err); ok {
		err = op.Err
	}
	text := err.Error()
	if e, ok := errors.AsType[dbus.Error](err); ok {
		text = e.Name + ": " + text
	}
	text = strings.Map(func(r rune) rune {
		if r < ' ' || r == 0x7f {
			return ' '
		}
		return r
	}, text)
	return text[:min(len(text), 200)]
}
