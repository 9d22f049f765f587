package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strconv"
	"strings"
	"sync"
	"time"
)

// half sends bytes, ends its direction, and reads what comes after that.
func (c *caller) half(ctx context.Context, addr string) error {
	var d net.Dialer
	conn, err := d.DialContext(ctx, "tcp", addr)
	if err != nil {
		return err
	}
	defer conn.Close()
	sent := bytes.Repeat([]byte("\x00\xff\r\n"), 1<<18)
	if _, err := conn.Write(sent); err != nil {
		return err
	}
	if err := conn.(*net.TCPConn).CloseWrite(); err != nil {
		return err
	}
	got, err := io.ReadAll(conn)
	if err != nil {
		return err
	}
	if !bytes.Equal(got, sent) {
		return fmt.Errorf("%d bytes came back, which are not the %d that were sent", len(got), len(sent))
	}
	fmt.Fprintf(c.out, "half=%d\n", len(got))
	return nil
}

// others tries what must not answer where the endpoint at port is all that there is:
// its own loopback except for that port, addresses of machines and networks, and names.
func (c *caller) others(ctx context.Context, port int64) error {
	var targets []string
	for p := int64(2); p <= 65535; p += 97 { // 1 is the agent's, which speaks to who has its token
		if p != port {
			targets = append(targets, net.JoinHostPort("127.0.0.1", strconv.FormatInt(p, 10)))
		}
	}
	own := strconv.FormatInt(port, 10)
	for _, host := range []string{
		"127.0.0.2", "0.0.0.0", "10.0.0.1", "172.17.0.1", "192.168.0.1", "169.254.169.254", "100.100.100.200", "93.184.215.14", "8.8.8.8", "224.0.0.1",
		"255.255.255.255", "::ffff:10.0.0.1", "fd00:ec2::254", "fe80::1", "2606:4700:4700::1111",
	} {
		for _, p := range []string{own, "80", "53", "22"} {
			if host == "0.0.0.0" && p == own {
				continue // this host, by another name
			}
			targets = append(targets, net.JoinHostPort(host, p))
		}
	}
	names := []string{"example.com:80", "metadata.google.internal:80", "host.docker.internal:80", "gateway:80"}
	var (
		wg       sync.WaitGroup
		mu       sync.Mutex
		answered []string
	)
	slots := make(chan struct{}, 64)
	for _, t := range append(targets, names...) {
		slots <- struct{}{}
		wg.Go(func() {
			defer func() { <-slots }()
			d := net.Dialer{Timeout: 5 * time.Second}
			conn, err := d.DialContext(ctx, "tcp", t)
			if err != nil {
				return
			}
			conn.Close()
			mu.Lock()
			answered = append(answered, t)
			mu.Unlock()
		})
	}
	wg.Wait()
	found, err := net.DefaultResolver.LookupHost(ctx, "example.com")
	if err == nil {
		answered = append(answered, "example.com is "+strings.Join(found, " "))
	}
	if len(answered) > 0 {
		return errors.New("these answer: " + strings.Join(answered, ", "))
	}
	fmt.Fprintf(c.out, "tried=%d names=%d\n", len(targets), len(names))
	return nil
}
