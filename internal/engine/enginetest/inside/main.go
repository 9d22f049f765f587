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
	"net"
	"os"
	"os/signal"
	"slices"
)

// request is the first line of a connection: echo everything that follows, end
// the agent, or run a program and answer with its output.
type request struct {
	Echo bool     `json:"echo,omitempty"`
	Exit bool     `json:"exit,omitempty"`
	Argv []string `json:"argv,omitempty"`
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
	ln, given := listener()
	if !given {
		var err error
		if ln, err = net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", c.Port)); err != nil {
			fmt.Fprintln(ready, "cannot listen:", err)
			return
		}
		for _, fd := range []uintptr{5, 6} {
			if born, err := net.FileConn(os.NewFile(fd, "born with")); err == nil {
				go serve(born)
			}
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
		go serve(conn)
	}
}

// silence never returns and, unlike an empty select, is no deadlock.
func silence() {
	signals := make(chan os.Signal, 1)
	signal.Notify(signals)
	for range signals {
	}
}

func serve(conn net.Conn) {
	defer conn.Close()
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
	json.NewEncoder(conn).Encode(run(req))
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
