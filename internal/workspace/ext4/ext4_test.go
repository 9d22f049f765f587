package ext4_test

import (
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/cloche-dev/cloche/internal/workspace/ext4"
)

func image(t *testing.T, s ext4.Shape) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "image")
	f, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if err := ext4.Make(f, s); err != nil {
		t.Fatal(err)
	}
	return path
}

func shapes() []ext4.Shape {
	var out []ext4.Shape
	for _, size := range []int64{1 << 20, 3<<20 + 5, 100 << 20, 125 << 20, 127 << 20, 128 << 20, 300 << 20, 1 << 30, 10 << 30, 200 << 30} {
		for _, inodes := range []int64{1, 100, 4097, size / 16384, size / 4096} {
			if inodes > 0 && inodes <= size/4096 && inodes < 1<<24 {
				out = append(out, ext4.Shape{SizeBytes: size, Inodes: inodes}, ext4.Shape{SizeBytes: size, Inodes: inodes, Journal: true})
			}
		}
	}
	return append(out, ext4.Shape{SizeBytes: 2 << 40, Inodes: 1 << 20, Journal: true})
}

// What the filesystem's own checker says of each.
func TestMakeIsClean(t *testing.T) {
	fsck, err := exec.LookPath("e2fsck")
	if err != nil {
		t.Skip("needs e2fsck: it is the judge of what is made")
	}
	for _, s := range shapes() {
		if s.SizeBytes > 300<<20 && s.Inodes > 1<<17 && testing.Short() {
			continue
		}
		t.Run(fmt.Sprintf("%d bytes %d inodes journal %v", s.SizeBytes, s.Inodes, s.Journal), func(t *testing.T) {
			path := image(t, s)
			var st syscall.Stat_t
			if err := syscall.Stat(path, &st); err != nil {
				t.Fatal(err)
			}
			if taken := st.Blocks * 512; taken > 64<<10+s.SizeBytes/1000 {
				t.Errorf("it takes %d bytes when it is empty", taken)
			}
			out, err := exec.CommandContext(t.Context(), fsck, "-fn", path).CombinedOutput()
			if err != nil {
				t.Errorf("%v\n%s", err, out)
			}
		})
	}
}

func TestUsageOfAnEmptyOne(t *testing.T) {
	for _, s := range shapes() {
		f, err := os.Open(image(t, s))
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		u, err := ext4.ReadUsage(f)
		if err != nil {
			t.Fatal(err)
		}
		if space, err := s.Space(); err != nil || space != u {
			t.Errorf("%+v: room for %+v, and %+v is free: %v", s, space, u, err)
		}
		if over := u.FreeBytes - s.SizeBytes; over < 0 || over > 9<<20 {
			t.Errorf("%+v: %d bytes are free", s, u.FreeBytes)
		}
		if over := u.FreeInodes - s.Inodes; over < 0 || over > 16*(s.SizeBytes>>27+2) || s.Inodes > s.SizeBytes>>20 && s.Inodes > 64 && over != 0 {
			t.Errorf("%+v: %d inodes are free", s, u.FreeInodes)
		}
	}
}

func TestMakeRefuses(t *testing.T) {
	for _, s := range []ext4.Shape{{}, {SizeBytes: 1 << 19, Inodes: 1}, {SizeBytes: 1 << 50, Inodes: 1}, {SizeBytes: 1 << 20}, {SizeBytes: 1 << 20, Inodes: 257}, {SizeBytes: 1 << 20, Inodes: -1}} {
		f, err := os.Create(filepath.Join(t.TempDir(), "x"))
		if err != nil {
			t.Fatal(err)
		}
		if err := ext4.Make(f, s); err == nil {
			t.Errorf("%+v was made", s)
		}
		f.Close()
	}
}

func FuzzReadUsage(f *testing.F) {
	path := filepath.Join(f.TempDir(), "image")
	file, err := os.Create(path)
	if err != nil {
		f.Fatal(err)
	}
	if err := ext4.Make(file, ext4.Shape{SizeBytes: 1 << 20, Inodes: 100}); err != nil {
		f.Fatal(err)
	}
	head := make([]byte, 2048)
	if _, err := file.ReadAt(head, 0); err != nil {
		f.Fatal(err)
	}
	f.Add(head)
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, data []byte) {
		path := filepath.Join(t.TempDir(), "image")
		if err := os.WriteFile(path, data, 0o600); err != nil {
			t.Fatal(err)
		}
		in, err := os.Open(path)
		if err != nil {
			t.Fatal(err)
		}
		defer in.Close()
		if u, err := ext4.ReadUsage(in); err == nil && (u.FreeBytes < 0 || u.FreeInodes < 0) {
			t.Errorf("less than nothing is free: %+v", u)
		}
	})
}

// Random shapes: the filesystem is clean, and holds what was asked for.
// The seed is in the name of the test that fails.
func TestMakeAnyShape(t *testing.T) {
	fsck, err := exec.LookPath("e2fsck")
	if err != nil {
		t.Skip("needs e2fsck: it is the judge of what is made")
	}
	for seed := range uint64(150) {
		r := rand.New(rand.NewPCG(seed, 0))
		// Sizes of all magnitudes, and around the ends of groups of blocks.
		size := int64(ext4.MinSize) << r.IntN(14)
		if r.IntN(2) == 0 {
			size += r.Int64N(size)
		} else {
			size = size/(128<<20)*(128<<20) + max(size%(128<<20), ext4.MinSize) + r.Int64N(2<<20)
		}
		blocks := (size + ext4.BlockSize - 1) / ext4.BlockSize
		s := ext4.Shape{SizeBytes: size, Inodes: min(1+r.Int64N(blocks), 1+r.Int64N(1<<18)), Journal: r.IntN(2) == 0}
		if r.IntN(4) == 0 && blocks < 1<<18 {
			s.Inodes = blocks
		}
		t.Run(fmt.Sprintf("%d %+v", seed, s), func(t *testing.T) {
			path := image(t, s)
			if out, err := exec.CommandContext(t.Context(), fsck, "-fn", path).CombinedOutput(); err != nil {
				t.Errorf("%v\n%s", err, out)
			}
			space, err := s.Space()
			if err != nil || space.FreeBytes < s.SizeBytes || space.FreeInodes < s.Inodes {
				t.Errorf("room for %+v: %v", space, err)
			}
		})
	}
}

// The largest has numbers of blocks and of inodes that still fit the format, and
// a kernel's or checker's own limits above it.
func TestMakeTheLargest(t *testing.T) {
	for _, inodes := range []int64{1, ext4.MaxSize / ext4.BlockSize} {
		s := ext4.Shape{SizeBytes: ext4.MaxSize, Inodes: inodes, Journal: true}
		f := &sparse{}
		if err := ext4.Make(f, s); err != nil {
			t.Fatal(err)
		}
		if f.size/ext4.BlockSize >= 1<<32 {
			t.Errorf("%d inodes: %d blocks do not fit 32 bits", inodes, f.size/ext4.BlockSize)
		}
		if f.size <= s.SizeBytes || f.end > f.size {
			t.Errorf("%d inodes: %d bytes of file, written up to %d", inodes, f.size, f.end)
		}
	}
}

// sparse forgets what is written to it.
type sparse struct{ size, end int64 }

func (f *sparse) Truncate(size int64) error { f.size = size; return nil }

func (f *sparse) WriteAt(p []byte, at int64) (int, error) {
	f.end = max(f.end, at+int64(len(p)))
	return len(p), nil
}
