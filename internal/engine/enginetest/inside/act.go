//go:build linux

package main

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// act does one thing and prints what came of it.
func act(what string, args []string) error {
	switch what {
	case "cat":
		b, err := os.ReadFile(args[0])
		os.Stdout.Write(b)
		return err
	case "write":
		return os.WriteFile(args[0], []byte(args[1]), 0o644)
	case "ls":
		return list(args[0])
	case "fill":
		return fill(args[0])
	case "hog":
		n, _ := strconv.Atoi(args[0])
		return hog(n)
	case "spin":
		d, err := time.ParseDuration(args[0])
		return errors.Join(err, spin(d))
	case "sleep":
		d, err := time.ParseDuration(args[0])
		time.Sleep(d)
		return err
	case "count":
		return count(args[0])
	case "hostname":
		name, err := os.Hostname()
		fmt.Println(name)
		return err
	case "devices":
		return devices(len(args) > 0 && args[0] == "confined")
	case "huge":
		return huge(len(args) > 0 && args[0] == "confined")
	case "reach":
		return reach()
	case "number", "numbered", "number-ids":
		return number(what, args)
	case "interfaces":
		return interfaces()
	case "connect":
		return connect(args[0])
	case "connect-unix":
		return connectUnix(args[0])
	case "write-pipe":
		return writePipe(args[0])
	case "own-sockets":
		return ownSockets(args[0])
	case "fds":
		return list("/proc/self/fd")
	case "cpus":
		fmt.Println(runtime.NumCPU())
		return nil
	case "chmod":
		mode, _ := strconv.ParseUint(args[1], 8, 32)
		return os.Chmod(args[0], fs.FileMode(mode))
	case "setuid-exec":
		return setuidExec(args[0])
	case "replace":
		if err := os.RemoveAll(args[0]); err != nil {
			return err
		}
		return os.Mkdir(args[0], 0o755)
	case "audit":
		return audit(args)
	case "sockets":
		return sockets(args[0])
	case "take":
		return take(args[0], args[1], args[2])
	case "take-as":
		return takeAs(args[0])
	case "take-some":
		return takeSomeOnce(args[0], args[1])
	case "forks":
		return forks()
	case "tree":
		return tree(args[0])
	}
	return fmt.Errorf("unknown action %q", what)
}

func list(dir string) error {
	entries, err := os.ReadDir(dir)
	for _, e := range entries {
		fmt.Println(e.Name())
	}
	return err
}

// fill writes until it cannot, and says how far it came and why.
func fill(path string) error {
	f, err := os.Create(path)
	if err != nil {
		return err
	}
	defer f.Close()
	b := make([]byte, 1<<20)
	for i := range b {
		b[i] = byte(i)
	}
	for n := 0; n < 4096; n++ {
		if _, err := f.Write(b); err != nil {
			fmt.Println(n, err)
			if errors.Is(err, syscall.ENOSPC) {
				return nil
			}
			return err
		}
	}
	return errors.New("nothing stopped it after 4 GiB")
}

// hog takes n MiB of memory and touches all of it.
func hog(n int) error {
	var keep [][]byte
	for range n {
		b := make([]byte, 1<<20)
		for i := 0; i < len(b); i += 4096 {
			b[i] = 1
		}
		keep = append(keep, b)
	}
	runtime.KeepAlive(keep)
	fmt.Println("took it all")
	return nil
}

func spin(d time.Duration) error {
	for end := time.Now().Add(d); time.Now().Before(end); {
	}
	return nil
}

// count writes how far it has come, again and again, for as long as its parent
// lives.
func count(path string) error {
	parent := os.Getppid()
	for n := 1; os.Getppid() == parent; n++ {
		if err := os.WriteFile(path, []byte(strconv.Itoa(n)), 0o644); err != nil {
			return err
		}
		time.Sleep(2 * time.Millisecond)
	}
	return nil
}

func interfaces() error {
	list, err := net.Interfaces()
	for _, i := range list {
		addrs, _ := i.Addrs()
		fmt.Println(i.Name, addrs)
	}
	return err
}

func connect(addr string) error {
	conn, err := net.DialTimeout("tcp", addr, 2*time.Second)
	if err != nil {
		return err
	}
	return conn.Close()
}

func setuidExec(path string) error {
	var st syscall.Stat_t
	if err := syscall.Stat(path, &st); err != nil {
		return err
	}
	fmt.Printf("%o %d\n", st.Mode, st.Uid)
	return nil
}

// limitPids does what an agent does to bound what it starts: it mounts the unified
// hierarchy where programs cannot see it, and makes a group in it. The result is the
// group's file for processes. Programs may not be allowed to mount one.
func limitPids(most int) (*os.File, error) {
	dir, err := os.MkdirTemp("", "cgroup")
	if err != nil {
		return nil, err
	}
	if err := syscall.Mount("cgroup2", dir, "cgroup2", 0, ""); err != nil {
		return nil, fmt.Errorf("mount cgroup2: %w", err)
	}
	if err := makeRoom(dir); err != nil {
		return nil, fmt.Errorf("make room for groups: %w", err)
	}
	job := filepath.Join(dir, "jobs")
	if err := os.Mkdir(job, 0o755); err != nil {
		return nil, fmt.Errorf("make group: %w", err)
	}
	if err := os.WriteFile(filepath.Join(job, "pids.max"), []byte(strconv.Itoa(most)), 0); err != nil {
		return nil, fmt.Errorf("write pids.max: %w", err)
	}
	fd, err := os.Open(job)
	if err != nil {
		return nil, err
	}
	defer fd.Close()
	if err := syscall.Unmount(dir, syscall.MNT_DETACH); err != nil {
		return nil, fmt.Errorf("unmount: %w", err)
	}
	root, err := os.OpenRoot(fmt.Sprintf("/proc/self/fd/%d", fd.Fd()))
	if err != nil {
		return nil, fmt.Errorf("open after unmount: %w", err)
	}
	defer root.Close()
	procs, err := root.OpenFile("cgroup.procs", os.O_WRONLY, 0)
	if err != nil {
		return nil, fmt.Errorf("open cgroup.procs: %w", err)
	}
	return procs, nil
}

// makeRoom moves what runs into a group below, and has those below limit processes. The
// first group of a whole hierarchy needs neither.
func makeRoom(dir string) error {
	if _, err := os.Stat(filepath.Join(dir, "cgroup.type")); err != nil {
		return nil
	}
	own := filepath.Join(dir, "agent")
	if err := os.Mkdir(own, 0o755); err != nil {
		return err
	}
	procs, err := os.ReadFile(filepath.Join(dir, "cgroup.procs"))
	if err != nil {
		return err
	}
	for pid := range strings.FieldsSeq(string(procs)) {
		if err := os.WriteFile(filepath.Join(own, "cgroup.procs"), []byte(pid), 0); err != nil {
			return err
		}
	}
	return os.WriteFile(filepath.Join(dir, "cgroup.subtree_control"), []byte("+pids"), 0)
}

// forks starts processes until it may not, and says why. They last until then, however
// slow the machine is.
func forks() error {
	started := 0
	for range 50 {
		p, err := os.StartProcess("/proc/self/exe", []string{"inside", "sleep", "1m"}, &os.ProcAttr{})
		if err != nil {
			fmt.Println("started", started, "then", err)
			return nil
		}
		defer p.Kill()
		started++
	}
	return fmt.Errorf("started %d processes", started)
}

// tree prints every file below dir with all that an image keeps of it.
func tree(dir string) error {
	return filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		var st syscall.Stat_t
		if err := syscall.Lstat(path, &st); err != nil {
			return err
		}
		fmt.Printf("%s %o %d:%d nlink=%d size=%d", path, st.Mode, st.Uid, st.Gid, st.Nlink, st.Size)
		switch {
		case d.Type()&fs.ModeSymlink != 0:
			to, err := os.Readlink(path)
			if err != nil {
				return err
			}
			fmt.Printf(" -> %s", to)
		case d.Type().IsRegular():
			b, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			sum := 0
			for _, c := range b {
				sum = (sum*31 + int(c)) & 0xffffff
			}
			fmt.Printf(" read=%d sum=%x", len(b), sum)
		}
		names := make([]byte, 4096)
		if n, err := syscall.Listxattr(path, names); err == nil && n > 0 {
			for name := range strings.SplitSeq(strings.TrimRight(string(names[:n]), "\x00"), "\x00") {
				v := make([]byte, 4096)
				n, err := syscall.Getxattr(path, name, v)
				fmt.Printf(" %s=%q,%v", name, v[:max(n, 0)], err)
			}
		}
		fmt.Println()
		return nil
	})
}
