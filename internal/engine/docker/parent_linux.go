package docker

import (
	"bytes"
	"os"
	"strconv"
)

// self is this process.
func self() *parent { return &parent{PID: os.Getpid(), Began: began(os.Getpid())} }

// alive says whether the process is still there.
func (p *parent) alive() bool {
	now := began(p.PID)
	return now != "" && now == p.Began
}

// began is when a process was started, in the machine's own ticks; empty is no
// process.
func began(pid int) string {
	b, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return ""
	}
	// The name is in brackets and may hold anything.
	i := bytes.LastIndexByte(b, ')')
	f := bytes.Fields(b[i+1:])
	if i < 0 || len(f) < 20 || f[0][0] == 'Z' {
		return ""
	}
	return string(f[19])
}
