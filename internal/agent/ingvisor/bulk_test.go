//go:build linux

package ingvisor

import (
	"io"
	"testing"

	"github.com/cloche-dev/cloche/internal/agent"
)

type zeros struct{}

func (zeros) Read(p []byte) (int, error) { return len(p), nil }

// BenchmarkBulk measures files in and out and streamed output, 64 MiB at a time.
func BenchmarkBulk(b *testing.B) {
	const size = 64 << 20
	in := boot(b, nil)
	b.Run("write", func(b *testing.B) {
		b.SetBytes(size)
		for b.Loop() {
			if _, err := in.WriteFile(b.Context(), "/tmp/bulk", agent.WriteOptions{}, io.LimitReader(zeros{}, size)); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("read", func(b *testing.B) {
		b.SetBytes(size)
		for b.Loop() {
			r, _, err := in.ReadFile(b.Context(), "/tmp/bulk", 0, -1)
			if err != nil {
				b.Fatal(err)
			}
			if n, err := io.Copy(io.Discard, r); n != size || err != nil {
				b.Fatal(n, err)
			}
			r.Close()
		}
	})
	b.Run("output", func(b *testing.B) {
		b.SetBytes(size)
		for b.Loop() {
			st, err := in.Stream(b.Context(), shell("head -c 67108864 /dev/zero"))
			if err != nil {
				b.Fatal(err)
			}
			for {
				ev, err := st.Recv()
				if err != nil {
					b.Fatal(err)
				}
				if ev.Exit != nil {
					break
				}
			}
		}
	})
}
