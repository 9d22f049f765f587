//go:build linux

package ingvisor

import (
	"errors"
	"fmt"
	"testing"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/agent"
)

// managed is a managed process that runs a script.
func managed(script string) agent.Process {
	s := shell(script)
	s.Timeout, s.ExecID = 0, api.NewID("p-")
	return agent.Process{Start: s}
}

// BenchmarkFollow measures what one follower gets of a flood that waits for it,
// 256 MiB at a time, and for comparison the same flood through a pipe inside.
func BenchmarkFollow(b *testing.B) {
	const size = 256 << 20
	in := boot(b, nil)
	for _, bs := range []string{"64k", "1M"} {
		flood := fmt.Sprintf("exec dd if=/dev/zero bs=%s count=%d iflag=fullblock status=none", bs, map[string]int{"64k": 4096, "1M": 256}[bs])
		b.Run(bs, func(b *testing.B) {
			b.SetBytes(size)
			for b.Loop() {
				p := managed(flood)
				p.Spec.OnFull = api.OnFullBlock
				if _, err := in.StartProcess(b.Context(), p); err != nil {
					b.Fatal(err)
				}
				n, frames := int64(0), 0
				if err := in.Follow(b.Context(), p.ExecID, agent.FollowOptions{Follow: true, Primary: true}, func(k agent.Chunk) error {
					n += int64(len(k.Data))
					frames++
					return nil
				}); err != nil || n != size {
					b.Fatal(n, err)
				}
				b.ReportMetric(float64(size)/float64(frames)/1024, "KiB/chunk")
				if err := in.RemoveProcess(b.Context(), p.ExecID); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
	b.Run("pipe inside", func(b *testing.B) {
		b.SetBytes(size)
		for b.Loop() {
			if r, err := in.Exec(b.Context(), shell("dd if=/dev/zero bs=64k count=4096 status=none | dd of=/dev/null bs=128k status=none")); err != nil || !r.OK() {
				b.Fatal(r, err)
			}
		}
	})
}

// BenchmarkFirstByte measures from the call to the first byte that is kept.
func BenchmarkFirstByte(b *testing.B) {
	in := boot(b, nil)
	p := managed("echo hello; exec sleep 1000")
	p.Spec.Ready = &api.Readiness{Log: "hello"}
	if _, err := in.StartProcess(b.Context(), p); err != nil {
		b.Fatal(err)
	}
	enough := errors.New("enough")
	if err := in.WatchProcesses(b.Context(), func(r api.Process) error {
		if r.ReadyAt != nil {
			return enough
		}
		return nil
	}); err != enough {
		b.Fatal(err)
	}
	for b.Loop() {
		if err := in.Follow(b.Context(), p.ExecID, agent.FollowOptions{Follow: true}, func(agent.Chunk) error { return enough }); err != enough {
			b.Fatal(err)
		}
	}
}
