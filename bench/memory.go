//go:build linux

package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cloche-dev/cloche/client"
)

// settle is how long a sandbox has had nothing to do before it counts as idle.
const settle = 5 * time.Second

// memoryRow is what one idle sandbox of a kind costs.
type memoryRow struct {
	Subject   string `json:"subject"`
	Sandboxes int    `json:"sandboxes"`
	// PSS is the sum over the sandbox's host processes, SentryMB and GoferMB its
	// parts, all in 10⁶ bytes and averaged. Memory that processes have together, as
	// the stubs of one address space do, is counted once.
	PSSMB    float64 `json:"pss_mb"`
	SentryMB float64 `json:"sentry_mb"`
	GoferMB  float64 `json:"gofer_mb"`
	// AgentMB is part of SentryMB.
	AgentMB     float64 `json:"agent_mb"`
	AvailableMB float64 `json:"available_mb"`
	Processes   float64 `json:"processes"`
	GoalMB      float64 `json:"goal_mb,omitempty"`
}

// kind makes idle sandboxes of one kind.
type kind struct {
	name   string
	exe    string // what their host processes execute; empty is what Cloche's do
	goalMB float64
	make   func(context.Context) error
	agent  func(context.Context) (string, error) // the agent's /proc/1/status inside; may be nil
	drop   func(context.Context) error
}

func (b *bench) memory(ctx context.Context) error {
	p, err := b.need(ctx)
	if err != nil {
		return err
	}
	var kinds []kind
	if p.fresh != nil {
		kinds = append(kinds, kind{
			name: "cloche, image, no gofer", goalMB: 14,
			make: func(context.Context) error { _, err := p.fresh.ask("hold"); return err },
			agent: func(context.Context) (string, error) {
				a, err := p.fresh.ask("exec", "/bin/cat", "/proc/1/status")
				return a.Output, err
			},
			drop: func(context.Context) error { _, err := p.fresh.ask("drop"); return err },
		})
	}
	if p.app != nil {
		kinds = append(kinds, p.app.idle())
	}
	if p.runsc != nil && p.image != nil {
		kinds = append(kinds, p.runsc.idle())
	}
	for _, k := range kinds {
		row, err := b.measureIdle(ctx, k)
		if err != nil {
			b.missing("idle memory of "+k.name, err)
			continue
		}
		b.report.Memory = append(b.report.Memory, row)
	}
	return ctx.Err()
}

// idle are sandboxes of the daemon.
func (h *app) idle() kind {
	var held []*client.Sandbox
	return kind{
		name: "cloche, host and workspace", goalMB: 18,
		make: func(ctx context.Context) error {
			sb, err := h.create(ctx)
			if err == nil {
				held = append(held, sb)
			}
			return err
		},
		agent: func(ctx context.Context) (string, error) {
			res, err := held[0].Exec(ctx, "/bin/cat", "/proc/1/status")
			if err != nil {
				return "", err
			}
			return res.Output(), nil
		},
		drop: func(ctx context.Context) error {
			var errs []error
			for _, sb := range held {
				errs = append(errs, sb.Remove(ctx))
			}
			held = nil
			return errors.Join(errs...)
		},
	}
}

// idle are detached containers that sleep, each with a cgroup of its own.
func (r *stockRunsc) idle() kind {
	var ids []string
	return kind{
		name: "runsc, image", exe: r.bin,
		make: func(ctx context.Context) error {
			bundle, err := r.imageBundle("image-idle-"+strconv.Itoa(len(ids)), "/bin/sleep", "100000")
			if err != nil {
				return err
			}
			id, err := r.detached(ctx, bundle)
			if err == nil {
				ids = append(ids, id)
			}
			return err
		},
		drop: func(ctx context.Context) error {
			var errs []error
			for _, id := range ids {
				errs = append(errs, r.remove(ctx, id))
			}
			ids = nil
			return errors.Join(errs...)
		},
	}
}

func (b *bench) measureIdle(ctx context.Context, k kind) (row memoryRow, err error) {
	defer func() { err = errors.Join(err, k.drop(context.WithoutCancel(ctx))) }()
	if err := k.make(ctx); err != nil { // what the first one alone costs is not counted
		return row, err
	}
	before, err := processesOf(k.exe)
	if err != nil {
		return row, err
	}
	if err := wait(ctx, settle); err != nil {
		return row, err
	}
	available := availableKiB()
	for range b.idle {
		if err := k.make(ctx); err != nil {
			return row, err
		}
	}
	if err := wait(ctx, settle); err != nil {
		return row, err
	}
	available -= availableKiB()
	after, err := processesOf(k.exe)
	if err != nil {
		return row, err
	}
	n := float64(b.idle)
	row = memoryRow{Subject: k.name, Sandboxes: b.idle, GoalMB: k.goalMB, AvailableMB: float64(available) * 1024 / 1e6 / n}
	var counted []int
	for _, pid := range slices.Sorted(maps.Keys(after)) {
		role := after[pid]
		if _, old := before[pid]; old {
			continue
		}
		if together, err := sameMemory(pid, counted); err != nil {
			return row, err
		} else if together {
			row.Processes += 1 / n
			continue
		}
		counted = append(counted, pid)
		mb, err := pssMB(pid)
		if err != nil {
			return row, err
		}
		row.Processes += 1 / n
		row.PSSMB += mb / n
		if role == "gofer" {
			row.GoferMB += mb / n
		} else {
			row.SentryMB += mb / n
		}
	}
	if row.Processes == 0 {
		return row, errors.New("no process of them was found")
	}
	if k.agent != nil {
		status, err := k.agent(ctx)
		if err != nil {
			return row, err
		}
		if row.AgentMB, err = residentMB(status); err != nil {
			return row, err
		}
	}
	return row, nil
}

func wait(ctx context.Context, d time.Duration) error {
	select {
	case <-time.After(d):
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// processesOf finds the processes that execute a file, and says which of them are gofers. Without a file they are those
// of Cloche's sandboxes, whose executable is the one that processes with the names of its roles have.
func processesOf(exe string) (map[int]string, error) {
	var want []os.FileInfo
	if exe != "" {
		fi, err := os.Stat(exe)
		if err != nil {
			return nil, fmt.Errorf("find processes: %w", err)
		}
		want = append(want, fi)
	}
	files, names := map[int]os.FileInfo{}, map[int]string{}
	err := eachProcess(func(pid int, dir string) {
		fi, err := os.Stat(filepath.Join(dir, "exe"))
		if err != nil {
			return // ended, or a thread of the kernel's
		}
		argv, _ := os.ReadFile(filepath.Join(dir, "cmdline"))
		files[pid], names[pid] = fi, strings.SplitN(string(argv), "\x00", 2)[0]
		if exe == "" && (strings.HasPrefix(names[pid], "cloche-sentry") || strings.HasPrefix(names[pid], "cloche-gofer")) {
			want = append(want, fi)
		}
	})
	found := map[int]string{}
	for pid, fi := range files {
		if !slices.ContainsFunc(want, func(w os.FileInfo) bool { return os.SameFile(fi, w) }) {
			continue
		}
		found[pid] = "sentry"
		if strings.Contains(names[pid], "gofer") {
			found[pid] = "gofer"
		}
	}
	return found, err
}

// eachProcess calls visit with each process of the host and its directory in /proc,
// which may be gone by then.
func eachProcess(visit func(pid int, dir string)) error {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return fmt.Errorf("find processes: %w", err)
	}
	for _, e := range entries {
		if pid, err := strconv.Atoi(e.Name()); err == nil {
			visit(pid, filepath.Join("/proc", e.Name()))
		}
	}
	return nil
}

// sameMemory reports whether a process has its address space together with one of
// the others. The kernel shows each of them the whole of it as its own share.
func sameMemory(pid int, others []int) (bool, error) {
	const kcmpVM = 1
	for _, other := range others {
		order, _, errno := unix.Syscall6(unix.SYS_KCMP, uintptr(pid), uintptr(other), kcmpVM, 0, 0, 0)
		if errno != 0 {
			return false, fmt.Errorf("compare the memory of the processes %d and %d: %w", pid, other, errno)
		}
		if order == 0 {
			return true, nil
		}
	}
	return false, nil
}

// pssMB is the proportional share of a process, in 10⁶ bytes.
func pssMB(pid int) (float64, error) {
	text := field("/proc/"+strconv.Itoa(pid)+"/smaps_rollup", "Pss", ":")
	kib, err := strconv.ParseInt(strings.TrimSuffix(text, " kB"), 10, 64)
	if err != nil {
		return 0, fmt.Errorf("read the memory of process %d: %w", pid, err)
	}
	return float64(kib) * 1024 / 1e6, nil
}
