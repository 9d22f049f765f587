package docker

import (
	"net/url"
	"strings"
	"testing"
)

// TestPipes: a pipe is one of this machine's, and a machine's that has them.
func TestPipes(t *testing.T) {
	for _, name := range []string{Docker, Podman} {
		for _, host := range pipes(name) {
			u, err := url.Parse(host)
			if err != nil {
				t.Fatal(err)
			}
			if p := checkPipe(u, "windows"); p != nil {
				t.Errorf("%s: %v", host, *p)
			}
			if p := checkPipe(u, "linux"); p == nil || p.Mend == "" {
				t.Errorf("%s is taken on Linux", host)
			}
		}
	}
	for _, host := range []string{"npipe:////server/pipe/docker_engine", "npipe://server/pipe/docker_engine", "npipe:///c:/docker", "npipe:"} {
		u, err := url.Parse(host)
		if err != nil {
			t.Fatal(err)
		}
		if p := checkPipe(u, "windows"); p == nil || p.Mend == "" {
			t.Errorf("%s is taken", host)
		}
	}
}

// TestAbsent: what starts a daemon is said as the system knows it.
func TestAbsent(t *testing.T) {
	for _, test := range []struct{ system, name, mend string }{
		{"linux", Docker, "systemctl"}, {"linux", Podman, "systemctl"},
		{"darwin", Docker, "Docker Desktop"}, {"windows", Docker, "Docker Desktop"}, {"windows", Podman, "podman machine start"},
	} {
		if p := absentOn(test.system, test.name); p.What == "" || !strings.Contains(p.Mend, test.mend) {
			t.Errorf("%s on %s: %v", test.name, test.system, p)
		}
	}
}
