package enginetest

import (
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/engine"
)

// testMountSockets reaches from inside for sockets and a named pipe of the host in what
// is mounted, and uses those of the sandbox's own.
func testMountSockets(s *suite) {
	enforces := s.engine.Probe(s.ctx).Enforces
	terms := engine.Terms{}
	if h, ok := s.engine.(engine.Host); ok {
		terms = h.Terms()
	}
	dirs := map[string]string{}
	for _, name := range []string{"ro", "rw"} {
		dir := s.TempDir()
		if err := os.Chmod(dir, 0o777); err != nil {
			s.Fatal(err)
		}
		if err := os.MkdirAll(filepath.Join(dir, "deep", ".hidden"), 0o755); err != nil {
			s.Fatal(err)
		}
		listenAt(s, dir, "")
		listenAt(s, dir, deep)
		if err := os.Symlink(".hidden", filepath.Join(dir, "deep", "link")); err != nil {
			s.Fatal(err)
		}
		dirs[name] = dir
	}
	// What was found and is another thing by now, or reached over a link, or above the mount.
	found := []string{"stream", "dgram", deep + "stream", deep + "dgram", "gone", "gone/stream", "deep", "deep/link/stream", "../stream"}
	i, _ := s.create(func(p *engine.Plan) {
		p.Mounts = []engine.Mount{
			{Source: dirs["ro"], Target: "/srv/ro", ReadOnly: true, Sockets: found},
			{Source: dirs["rw"], Target: "/srv/rw", Sockets: found},
		}
	})
	// They may come later, too.
	listenAt(s, dirs["ro"], "late-")
	listenAt(s, dirs["rw"], "late-")
	for dir, key := range map[string]string{"ro": api.EnforcesReadOnlyMountSockets, "rw": api.EnforcesMountSockets} {
		if e, told := enforces[key]; !told || !e.OK && e.Reason == "" {
			s.Errorf("report does not say whether it enforces %s, or why not: %+v", key, e)
		}
		for _, name := range []string{"stream", "dgram", deep + "stream", deep + "dgram", "late-stream", "late-dgram"} {
			got := s.exec(i, Inside, "connect-unix", "/srv/"+dir+"/"+name)
			switch {
			case terms.CoversSockets && slices.Contains(found, name):
				if got != "" {
					s.Errorf("a socket of the host at %s in the mount %s is covered, and reached:\n%s", name, dir, got)
				}
			case dir == "ro" && terms.KeepsOwners: // the caller that stages it closes it off
			case enforces[key].OK && got != "":
				s.Errorf("a socket of the host at %s in the mount %s is reached:\n%s", name, dir, got)
			case !enforces[key].OK && got == "":
				s.Errorf("no socket of the host at %s in the mount %s is reached, and the report says that it can be", name, dir)
			}
		}
	}
	if !terms.KeepsOwners && !terms.SingleUser {
		s.fails(i, Inside, "write-pipe", "/srv/ro/pipe")
		s.fails(i, Inside, "write-pipe", "/srv/ro/late-pipe")
	}
	s.exec(i, Inside, "cat", "/srv/rw/file")
	s.exec(i, Inside, "own-sockets", "/srv/rw")
	s.exec(i, Inside, "own-sockets", "/srv/rw/deep/.hidden")
	s.exec(i, Inside, "own-sockets", "/tmp")
	if got := s.exec(i, Inside, "cat", "/srv/ro/file"); got != "to be read\n" {
		s.Errorf("a file of the owner's alone in a read-only mount holds %q", got)
	}
	// What covers the sockets is not next to any file of the host, cannot be changed, and does
	// not disturb other files.
	if got := s.exec(i, Inside, "cat", "/proc/self/mountinfo"); strings.Contains(got, s.stateDir) {
		s.Errorf("the mounts tell of the host's %s:\n%s", s.stateDir, got)
	}
	if terms.CoversSockets {
		s.fails(i, Inside, "chmod", "/srv/rw/stream", "0600")
		s.fails(i, Inside, "replace", "/srv/rw/stream")
	}
	changeCovered(s, dirs)
}

// changeCovered changes on the host what is covered inside.
func changeCovered(s *suite, dirs map[string]string) {
	s.Helper()
	for _, dir := range dirs {
		for _, err := range []error{
			os.Remove(filepath.Join(dir, "stream")), os.Rename(filepath.Join(dir, "file"), filepath.Join(dir, "dgram")), os.RemoveAll(filepath.Join(dir, "deep")),
		} {
			if err != nil {
				s.Errorf("the host cannot change what is covered inside: %v", err)
			}
		}
		for _, name := range []string{"gone", "stream"} {
			if _, err := os.Lstat(filepath.Join(dir, name)); err == nil {
				s.Errorf("there is a file %s on the host", name)
			}
		}
	}
}

// deep is the beginning of names in a directory below the directory of a mount.
const deep = "deep/.hidden/"

// listenAt creates two sockets and a pipe of the host whose modes allow every user.
func listenAt(s *suite, dir, prefix string) {
	s.Helper()
	path := func(name string) string { return filepath.Join(dir, prefix+name) }
	ln, err := net.Listen("unix", path("stream"))
	if err != nil {
		s.Fatal(err)
	}
	s.Cleanup(func() { ln.Close() })
	to, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: path("dgram"), Net: "unixgram"})
	if err != nil {
		s.Fatal(err)
	}
	s.Cleanup(func() { to.Close() })
	if err := unix.Mkfifo(path("pipe"), 0o666); err != nil {
		s.Fatal(err)
	}
	for _, name := range []string{"stream", "dgram", "pipe"} {
		if err := os.Chmod(path(name), 0o777); err != nil {
			s.Fatal(err)
		}
	}
	if err := os.WriteFile(path("file"), []byte("to be read\n"), 0o600); err != nil {
		s.Fatal(err)
	}
}
