package enginetest

import (
	"fmt"
	"os"
	"os/exec"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/cloche-dev/cloche/internal/engine"
)

const hugePages = "/proc/sys/vm/nr_hugepages"

// testHugePages has the host keep some huge pages, which count as no group's memory. A
// program gets none of them by any call.
func testHugePages(s *suite) {
	if _, ok := s.engine.(engine.Host); !ok {
		s.Skip("needs a sandbox on the host's own kernel: this one has huge pages of its own memory only")
	}
	s.reserveHugePages(8)
	// The program that the sandbox runs gets some where nothing keeps it from them.
	out, err := exec.CommandContext(s.ctx, s.Images.Program, "huge").CombinedOutput()
	if err == nil || !strings.Contains(string(out), "mmap") {
		s.Fatalf("no huge pages on the host: %v, %s", err, out)
	}
	i, _ := s.create(nil)
	s.exec(i, Inside, "huge", "confined")
}

// reserveHugePages makes the kernel reserve pages until the end of the test. A lock keeps other
// tests from changing them in the meantime.
func (s *suite) reserveHugePages(n int) {
	s.Helper()
	f, err := os.OpenFile(hugePages, os.O_RDWR, 0)
	if err != nil {
		s.Skipf("needs to set how many huge pages the machine has: %v", err)
	}
	s.Cleanup(func() { f.Close() })
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX); err != nil {
		s.Fatal(err)
	}
	number := func() (n int) {
		b := make([]byte, 32)
		size, err := f.ReadAt(b, 0)
		if size == 0 {
			s.Fatal(err)
		}
		if _, err := fmt.Sscan(string(b[:size]), &n); err != nil {
			s.Fatal(err)
		}
		return n
	}
	before := number()
	set := func(n int) {
		if _, err := f.WriteAt(fmt.Appendln(nil, n), 0); err != nil {
			s.Errorf("set huge pages: %v", err)
		}
	}
	s.Cleanup(func() { set(before) })
	set(before + n)
	if got := number(); got <= before {
		s.Skipf("needs room for huge pages: the kernel has %d of %d", got, before+n)
	}
}
