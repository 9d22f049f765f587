//go:build linux

package ingvisor

import (
	"testing"

	"github.com/cloche-dev/cloche/internal/agent"
)

func BenchmarkStat(b *testing.B) {
	in := boot(b, nil)
	for b.Loop() {
		if _, err := in.Stat(b.Context(), "/etc"); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkExec measures a collected exec, and what it consists of: a program
// that does not exist costs all but the execve and the program.
func BenchmarkExec(b *testing.B) {
	in := boot(b, nil)
	if _, err := in.WriteFile(b.Context(), "/tmp/tiny", agent.WriteOptions{Mode: 0o755}, tinyELF()); err != nil {
		b.Fatal(err)
	}
	for _, c := range []struct {
		name string
		argv []string
	}{{"true", []string{"/bin/true"}}, {"tiny", []string{"/tmp/tiny"}}, {"shell", []string{"/bin/sh", "-c", ":"}}, {"missing", []string{"/nothing"}}} {
		b.Run(c.name, func(b *testing.B) {
			for b.Loop() {
				r, err := in.Exec(b.Context(), start(c.argv...))
				if c.name == "missing" {
					continue
				}
				if err != nil || !r.OK() {
					b.Fatal(r, err)
				}
			}
		})
	}
}
