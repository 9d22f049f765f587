//go:build linux

// Command inside is what the conformance suite runs in a sandbox: as "agent",
// the smallest program that keeps the engine contract's promises for an agent,
// and under other names the things that the suite wants to see done there. It
// needs nothing of the image.
package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net"
	"os"
	"os/signal"
	"slices"
	"sync"
	"time"
)

// request is the first line of a connection: echo everything that follows, end
// the agent, close every other connection, start a program, or run one and
// answer with its output.
type request struct {
	Echo    bool     `json:"echo,omitempty"`
	Exit    bool     `json:"exit,omitempty"`
	Suspend bool     `json:"suspend,omitempty"`
	Start   bool     `json:"start,omitempty"`
	Argv    []string `json:"argv,omitempty"`
	// Pids bounds the processes of the program, by a group that the agent makes.
	Pids int `json:"pids,omitempty"`
}

type response struct {
	Output []byte `json:"output"`
	Code   int    `json:"code"`
	Error  string `json:"error,omitempty"`
}

func main() {
	if len(os.Args) < 2 {
		os.Exit(2)
	}
	if os.Args[1] == "agent" {
		agent(os.Args[2:])
		return
	}
	if os.Args[1] == "join" {
		join(os.Args[2:])
		return
	}
	if err := act(os.Args[1], os.Args[2:]); err != nil {
		fmt.Println("error:", err)
		os.Exit(1)
	}
}

// agent is told its port by its configuration, so a test that sees it listen
// has seen the configuration arrive.
func agent(args []string) {
	ready := os.NewFile(4, "ready")
	config, err := configuration()
	if err != nil {
		fmt.Fprintln(ready, "cannot read configuration:", err)
		return
	}
	if len(args) > 0 && args[0] == "complain" {
		fmt.Fprintln(ready, "this is a complaint")
		return
	}
	if len(args) > 0 && args[0] == "silent" {
		silence()
	}
	var c struct{ Port int }
	if err := json.Unmarshal(config, &c); err != nil {
		fmt.Fprintln(ready, "cannot decode configuration:", err)
		return
	}
	all := &connections{open: map[net.Conn]chan struct{}{}}
	ln, given := listener()
	if !given {
		var err error
		if ln, err = net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", c.Port)); err != nil {
			fmt.Fprintln(ready, "cannot listen:", err)
			return
		}
		for _, fd := range []uintptr{5, 6} {
			file := os.NewFile(fd, "born with")
			if born, err := net.FileConn(file); err == nil {
				go all.serve(born)
			}
			file.Close() // a descriptor of the host that is open cannot be restored
		}
	} else if err := carry(); err != nil {
		fmt.Fprintln(ready, "cannot carry frames:", err)
		return
	}
	if _, err := ready.Write([]byte{0}); err != nil {
		return
	}
	ready.Close()
	for {
		conn, err := ln.Accept()
		if err != nil {
			return
		}
		go all.serve(conn)
	}
}

// silence never returns and, unlike an empty select, is no deadlock.
func silence() {
	signals := make(chan os.Signal, 1)
	signal.Notify(signals)
	for range signals {
	}
}

// connections are the open ones, each with a channel that is closed after it.
type connections struct {
	mu   sync.Mutex
	open map[net.Conn]chan struct{}
}

func (c *connections) serve(conn net.Conn) {
	over := make(chan struct{})
	c.mu.Lock()
	c.open[conn] = over
	c.mu.Unlock()
	defer func() {
		conn.Close()
		c.mu.Lock()
		delete(c.open, conn)
		c.mu.Unlock()
		close(over)
	}()
	in := bufio.NewReader(conn)
	line, err := in.ReadBytes('\n')
	if err != nil {
		return
	}
	var req request
	if err := json.Unmarshal(line, &req); err != nil {
		return
	}
	if req.Exit {
		os.Exit(0)
	}
	if req.Echo {
		io.Copy(conn, in)
		return
	}
	if req.Suspend {
		c.closeOthers(conn)
		json.NewEncoder(conn).Encode(response{})
		return
	}
	json.NewEncoder(conn).Encode(run(req))
}

// closeOthers closes every connection but one, and waits until they are closed.
func (c *connections) closeOthers(but net.Conn) {
	c.mu.Lock()
	others := maps.Clone(c.open)
	c.mu.Unlock()
	delete(others, but)
	for conn, over := range others {
		conn.SetReadDeadline(time.Unix(1, 0)) // its reader ends and closes it
		<-over
	}
}

// run runs a program, in the groups that the agent was given and in one that it makes
// for a limit.
func run(req request) response {
	groups := slices.Clip(given())
	if req.Pids > 0 {
		group, err := limitPids(req.Pids)
		if err != nil {
			return response{Code: -1, Error: err.Error()}
		}
		defer group.Close()
		groups = append(groups, group)
	}
	cmd := command(groups, req.Argv)
	if req.Start {
		if err := cmd.Start(); err != nil {
			return response{Code: -1, Error: err.Error()}
		}
		go func() { _ = cmd.Wait() }()
		return response{}
	}
	out, err := cmd.CombinedOutput()
	resp := response{Output: out}
	if cmd.ProcessState != nil {
		resp.Code = cmd.ProcessState.ExitCode()
	}
	if err != nil {
		resp.Error = err.Error()
	}
	return resp
}
