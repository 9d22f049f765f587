package enginetest

import (
	"os"
	"path/filepath"
	"strconv"

	"golang.org/x/sys/unix"

	"github.com/cloche-dev/cloche/internal/engine"
)

// testNumbers sees that an agent can show the one id of a sandbox to programs under other
// numbers, and that files of theirs belong to the daemon's user.
func testNumbers(s *suite) {
	h, shared := s.engine.(engine.Host)
	if shared && !h.Terms().SingleUser {
		s.Skip("needs a sandbox with one id: this one has as many as programs need")
	}
	dir := s.TempDir()
	i, _ := s.create(func(p *engine.Plan) { p.Mounts = []engine.Mount{{Source: dir, Target: "/srv/job"}} })
	for _, id := range []string{"1000", "65534"} {
		name := "by-" + id
		want := id + " " + id + " " + id + " " + id + " 0\n"
		if got := s.exec(i, Inside, "number", id, "/srv/job/"+name, strconv.FormatBool(shared)); got != want {
			s.Errorf("the program is %q, want %q", got, want)
		}
		var st unix.Stat_t
		if err := unix.Stat(filepath.Join(dir, name), &st); err != nil || int(st.Uid) != os.Geteuid() || int(st.Gid) != os.Getegid() {
			s.Errorf("on the host its file belongs to %d:%d, %v", st.Uid, st.Gid, err)
		}
	}
	// Root is who it was.
	if got := s.exec(i, Inside, "ls", "/srv/job"); got != "by-1000\nby-65534\n" {
		s.Errorf("the directory has %q", got)
	}
	s.alive(i)
}
