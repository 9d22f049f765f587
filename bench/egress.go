//go:build linux

package main

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cloche-dev/cloche/api"
)

// The subjects of the group egress. Download and upload are egressBytes over one
// connection, connect is the median of many.
const (
	linkConnect  = "connect, cloche"
	linkDown     = "download, cloche"
	linkUp       = "upload, cloche"
	runscConnect = "connect, runsc"
	runscDown    = "download, runsc"
	runscUp      = "upload, runsc"

	egressBytes = 512 << 20
	// egressHost is a name that no server has; egressAddr is the address that the daemon gets for it.
	egressHost = "bench.example"
	egressAddr = "127.93.0.1"
	egressPort = "7000"
	// The namespaces of runsc's part: a link of a kind that every container has.
	farAddr, nearAddr = "10.201.0.1", "10.201.0.2"
)

// egressPolicy is what the daemon must know for the group egress.
const egressPolicy = "egress:\n  hosts: {" + egressHost + ": " + egressAddr + "}\n"

// egressClient is what runs inside, on both sides the same. It prints milliseconds.
const egressClient = `
import socket, struct, sys, time
verb, host, port, size = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
addr = (socket.gethostbyname(host), port)
def now(): return time.perf_counter() * 1000
if verb == "connect":
    took = []
    for _ in range(50):
        began = now()
        s = socket.create_connection(addr)
        took.append(now() - began)
        s.close()
    print(sorted(took)[len(took) // 2])
    sys.exit()
s = socket.create_connection(addr)
began = now()
s.sendall(verb[:1].encode() + struct.pack(">q", size))
buf = bytearray(1 << 20)
if verb == "download":
    left = size
    while left > 0:
        n = s.recv_into(buf)
        if n == 0: sys.exit("the connection ended early")
        left -= n
else:
    left = size
    while left > 0:
        n = s.send(memoryview(buf)[:min(left, len(buf))])
        left -= n
    if s.recv(1) != b".": sys.exit("no answer")
print(now() - began)
`

// egress compares the link, on which every connection goes by rules, with the network
// stack that runsc has for itself, which lets everything through.
func (b *bench) egress(ctx context.Context) (err error) {
	p, err := b.need(ctx)
	if err != nil {
		return err
	}
	if p.app == nil || p.host == nil {
		return errors.New("the daemon does not run")
	}
	server := &egressServer{}
	defer server.close()
	if err := server.listen(ctx, net.JoinHostPort(egressAddr, egressPort)); err != nil {
		return err
	}
	spec := p.app.spec()
	spec.Egress = &api.Egress{Allow: []string{egressHost + ":" + egressPort + " at 127.0.0.0/8"}}
	sb, err := p.app.client.Create(ctx, spec)
	if err != nil {
		return fmt.Errorf("create: %w", err)
	}
	defer func() { err = errors.Join(err, sb.Remove(context.WithoutCancel(ctx))) }()
	var all []subject
	add := func(name, how, verb string, run func(ctx context.Context, verb string) (string, error)) {
		all = append(all, subject{name: name, how: how, limit: time.Minute, run: func(ctx context.Context) (measure, error) {
			out, err := run(ctx, verb)
			if err != nil {
				return measure{}, err
			}
			ms, err := strconv.ParseFloat(strings.TrimSpace(out), 64)
			return measure{Total: time.Duration(ms * float64(time.Millisecond))}, err
		}})
	}
	ours := func(ctx context.Context, verb string) (string, error) {
		res, err := sb.Exec(ctx, "/usr/bin/python3", "-c", egressClient, verb, egressHost, egressPort, strconv.Itoa(egressBytes))
		if err == nil && !res.OK() {
			err = fmt.Errorf("the client ended with status %d: %s", res.ExitStatus(), tail(string(res.Stderr)))
		}
		return string(res.Stdout), err
	}
	add(linkConnect, "median of 50 connections by name to a server on loopback, one rule", "connect", ours)
	add(linkDown, "512 MiB over one of them, received by Python", "download", ours)
	add(linkUp, "512 MiB sent by Python", "upload", ours)
	if theirs, err := b.runscNetwork(ctx, p, server); err != nil {
		b.missing("runsc with a network", err)
	} else {
		add(runscConnect, "the same client, `runsc exec`, --network=sandbox over a veth to a server in a namespace", "connect", theirs)
		add(runscDown, "the same", "download", theirs)
		add(runscUp, "the same", "upload", theirs)
	}
	series, err := rounds(ctx, b.n, all, b.missing)
	if err != nil {
		return err
	}
	b.report.Series = append(b.report.Series, series...)
	b.report.judge(goals())
	return nil
}

// runscNetwork starts a container of stock runsc with its own network stack over a
// veth, and the server at the other end, each in a namespace of its own.
func (b *bench) runscNetwork(ctx context.Context, p *peers, server *egressServer) (func(context.Context, string) (string, error), error) {
	if p.runsc == nil {
		return nil, errors.New("there is no runsc")
	}
	far, near := fmt.Sprintf("cbench-far-%d", os.Getpid()), fmt.Sprintf("cbench-near-%d", os.Getpid())
	for _, args := range []string{
		"netns add " + far, "netns add " + near,
		"-n " + far + " link add far type veth peer name near netns " + near,
		"-n " + far + " addr add " + farAddr + "/24 dev far", "-n " + far + " link set far up",
		"-n " + near + " addr add " + nearAddr + "/24 dev near", "-n " + near + " link set near up", "-n " + near + " link set lo up",
	} {
		if args, ok := strings.CutPrefix(args, "netns add "); ok {
			b.defers(func() error { return command(context.WithoutCancel(ctx), "ip", "netns", "del", args).Run() })
		}
		if _, err := output(ctx, append([]string{"ip"}, strings.Fields(args)...)...); err != nil {
			return nil, err
		}
	}
	if err := server.listenIn(ctx, filepath.Join("/run/netns", far), net.JoinHostPort(farAddr, egressPort)); err != nil {
		return nil, err
	}
	r := *p.runsc
	r.network, r.netns = "sandbox", filepath.Join("/run/netns", near)
	bundle, err := r.hostBundle("host-network", *p.host, p.app.workspace, "/bin/sleep", "1000000")
	if err != nil {
		return nil, err
	}
	id, err := r.detached(ctx, bundle)
	if err != nil {
		return nil, err
	}
	p.runsc.count = r.count
	b.defers(func() error { return r.remove(context.WithoutCancel(ctx), id) })
	return func(ctx context.Context, verb string) (string, error) {
		return output(ctx, r.argv("exec", id, "/usr/bin/python3", "-c", egressClient, verb, farAddr, egressPort, strconv.Itoa(egressBytes))...)
	}, nil
}

// egressServer sends and takes what it is asked to.
type egressServer struct {
	listeners []net.Listener
	wg        sync.WaitGroup
}

func (s *egressServer) listen(ctx context.Context, addr string) error {
	ln, err := new(net.ListenConfig).Listen(ctx, "tcp", addr)
	if err != nil {
		return fmt.Errorf("start server: %w", err)
	}
	s.listeners = append(s.listeners, ln)
	s.wg.Go(func() {
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			s.wg.Go(func() {
				defer c.Close()
				_ = serveEgress(c) // the client says what is wrong
			})
		}
	})
	return nil
}

// listenIn is listen in a network namespace, which a thread of its own enters.
func (s *egressServer) listenIn(ctx context.Context, netns, addr string) error {
	result := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // never unlocked: the thread ends with the goroutine
		f, err := os.Open(netns)
		if err == nil {
			defer f.Close()
			err = unix.Setns(int(f.Fd()), unix.CLONE_NEWNET)
		}
		if err == nil {
			err = s.listen(ctx, addr)
		}
		result <- err
	}()
	return <-result
}

func serveEgress(c net.Conn) error {
	var head [9]byte
	if _, err := io.ReadFull(c, head[:]); err != nil {
		return err
	}
	n := int64(binary.BigEndian.Uint64(head[1:]))
	buf := make([]byte, 1<<20)
	if head[0] == 'd' {
		for ; n > 0; n -= int64(len(buf)) {
			if _, err := c.Write(buf[:min(n, int64(len(buf)))]); err != nil {
				return err
			}
		}
		return nil
	}
	if _, err := io.CopyBuffer(onlyWriter{io.Discard}, io.LimitReader(c, n), buf); err != nil {
		return err
	}
	_, err := io.WriteString(c, ".")
	return err
}

// onlyWriter keeps a copy from finding another way than its buffer.
type onlyWriter struct{ io.Writer }

func (s *egressServer) close() {
	for _, ln := range s.listeners {
		ln.Close()
	}
	s.wg.Wait()
}
