//go:build linux

package process

import (
	"bytes"
	"os"
	"slices"
	"strconv"

	"golang.org/x/sys/unix"
)

// tree finds the processes that descend from root, or are in its session, by
// walking /proc: what is done where there are no cgroups. A process whose
// ancestors have all ended is not found unless it stayed in the session.
func tree(root int) []int {
	type stat struct{ parent, session int }
	procs := map[int]stat{}
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return nil
	}
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		line, err := os.ReadFile("/proc/" + e.Name() + "/stat")
		if err != nil {
			continue
		}
		if parent, session, ok := parseStat(line); ok {
			procs[pid] = stat{parent, session}
		}
	}
	in := map[int]bool{root: true}
	for grown := true; grown; {
		grown = false
		for pid, s := range procs {
			if !in[pid] && pid != os.Getpid() && (in[s.parent] || s.session == root) {
				in[pid], grown = true, true
			}
		}
	}
	var pids []int
	for pid := range in {
		if _, ok := procs[pid]; ok && pid > 1 {
			pids = append(pids, pid)
		}
	}
	return pids
}

// treeOf finds what is left of a run. The number of a program that has ended may
// be another's; it is not as long as one of its session is left.
func treeOf(r *run) []int {
	pids := tree(r.child.pid)
	if r.exited() && slices.Contains(pids, r.child.pid) {
		return nil
	}
	return pids
}

// onlyGroup says whether a session has no process group but its leader's.
func onlyGroup(leader int) bool {
	for _, pid := range tree(leader) {
		line, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
		if err != nil {
			continue
		}
		if _, session, ok := parseStat(line); !ok || session != leader {
			continue
		}
		if group, err := unix.Getpgid(pid); err == nil && group != leader {
			return false
		}
	}
	return true
}

// parseStat reads the parent and the session from /proc/PID/stat. The name in it
// is the process's own choice and may hold anything.
func parseStat(line []byte) (parent, session int, ok bool) {
	end := bytes.LastIndexByte(line, ')')
	if end < 0 {
		return 0, 0, false
	}
	f := bytes.Fields(line[end+1:])
	if len(f) < 4 {
		return 0, 0, false
	}
	parent, err1 := strconv.Atoi(string(f[1]))
	session, err2 := strconv.Atoi(string(f[3]))
	return parent, session, err1 == nil && err2 == nil
}

// signalAll signals each process. Those that have ended meanwhile are no error.
func signalAll(pids []int, sig unix.Signal) {
	for _, pid := range pids {
		_ = unix.Kill(pid, sig)
	}
}
