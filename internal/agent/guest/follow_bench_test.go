//go:build linux

package guest

import (
	"testing"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/agent"
)

// BenchmarkFollow measures what one follower gets of a flood that waits for it.
func BenchmarkFollow(b *testing.B) {
	const size = 256 << 20
	in := boot(b, nil)
	b.SetBytes(size)
	for b.Loop() {
		p := managedShell("exec dd if=/dev/zero bs=1M count=256 status=none")
		p.Spec.OnFull = api.OnFullBlock
		in.must(b, p)
		n := int64(0)
		if err := in.Follow(b.Context(), p.ExecID, agent.FollowOptions{Follow: true, Primary: true}, func(k agent.Chunk) error {
			n += int64(len(k.Data))
			return nil
		}); err != nil || n != size {
			b.Fatal(n, err)
		}
	}
}
