package docker

import (
	"context"
	"crypto/tls"
	"errors"
	"io/fs"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"

	"github.com/moby/moby/client"

	"github.com/cloche-dev/cloche/api"
)

// Hosts are where the daemon of an engine is looked for: where chosen says, if it
// says anything, and else at the places of its packages for this user.
func Hosts(name, chosen string, getenv func(string) string) []string {
	if chosen != "" {
		return []string{chosen}
	}
	if runtime.GOOS == "windows" {
		return pipes(name)
	}
	var paths []string
	if runDir := getenv("XDG_RUNTIME_DIR"); runDir != "" && name == Docker {
		paths = append(paths, filepath.Join(runDir, "docker.sock"))
	} else if runDir != "" {
		paths = append(paths, filepath.Join(runDir, "podman", "podman.sock"))
	}
	if name == Podman {
		paths = append(paths, "/run/podman/podman.sock")
	} else {
		if home := getenv("HOME"); home != "" {
			paths = append(paths, filepath.Join(home, ".docker", "run", "docker.sock"))
		}
		paths = append(paths, "/var/run/docker.sock")
	}
	hosts := make([]string, len(paths))
	for i, p := range paths {
		hosts[i] = "unix://" + p
	}
	return hosts
}

// pipes are where the daemon of an engine listens on Windows: the pipe of Docker's packages, or of
// the first machine that Podman makes.
func pipes(name string) []string {
	if name == Podman {
		return []string{"npipe:////./pipe/podman-machine-default"}
	}
	return []string{"npipe:////./pipe/docker_engine"}
}

// checkHost says what is wrong with a host before the first connection to it.
func checkHost(host, certDir string) *api.Problem {
	u, err := url.Parse(host)
	if err != nil {
		return &api.Problem{What: "the daemon's host is no URL", Mend: "write unix:///path/of/docker.sock or tcp://host:2376"}
	}
	switch u.Scheme {
	case "unix":
		return checkSocket(u.Path)
	case "npipe":
		return checkPipe(u, runtime.GOOS)
	case "tcp":
		if ip := net.ParseIP(u.Hostname()); certDir != "" || ip != nil && ip.IsLoopback() || u.Hostname() == "localhost" {
			return nil
		}
		return &api.Problem{
			What: "the daemon at " + u.Host + " would be talked to without TLS, where everybody on the way could give it orders",
			Mend: "set its certificates, or forward its socket with ssh -L and use unix://",
		}
	case "ssh":
		return &api.Problem{
			What: "the engine does not speak SSH",
			Mend: "forward the daemon's socket (ssh -nNT -L /run/user/" + strconv.Itoa(os.Getuid()) + "/remote.sock:/var/run/docker.sock " + u.Host + ") and use unix://",
		}
	}
	return &api.Problem{What: "the daemon's host has the scheme " + strconv.Quote(u.Scheme), Mend: "use unix:// or tcp://"}
}

// checkPipe lets a pipe of this machine pass, on a system that has them.
func checkPipe(u *url.URL, system string) *api.Problem {
	switch {
	case system != "windows":
		return &api.Problem{What: "named pipes are for Windows", Mend: "use unix:// or tcp://"}
	case u.Host != "" || !strings.HasPrefix(strings.ToLower(u.Path), "//./pipe/"):
		return &api.Problem{What: "it is no pipe of this machine", Mend: "write npipe:////./pipe/docker_engine"}
	}
	return nil
}

func checkSocket(path string) *api.Problem {
	conn, err := net.Dial("unix", path)
	if err == nil {
		conn.Close()
		return nil
	}
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return &api.Problem{What: "nothing listens at " + path + ": there is no such socket"}
	case errors.Is(err, fs.ErrPermission):
		return &api.Problem{
			What: "this user may not use " + path,
			Mend: "add the user to the group of the socket, which is as good as root there, or run a rootless daemon",
		}
	}
	return &api.Problem{What: "no daemon answers at " + path}
}

// daemonAt returns the client for a host.
func (e *Engine) daemonAt(host string) (*daemon, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if d := e.daemons[host]; d != nil {
		return d, nil
	}
	// Every call has a connection of its own: one to a daemon on this machine costs
	// little, and none is left that a restart of the daemon would break.
	transport := &http.Transport{
		DisableKeepAlives: true,
		// A transport that is let speak HTTP/2 gets a configuration of TLS with its first
		// call, and what the client finds there it uses for all that it attaches to.
		TLSNextProto: map[string]func(string, *tls.Conn) http.RoundTripper{},
	}
	opts := []client.Opt{
		client.WithHTTPClient(&http.Client{Transport: transport, CheckRedirect: client.CheckRedirect}),
		client.WithHost(host),
	}
	if dir := e.opts.CertDir; dir != "" && strings.HasPrefix(host, "tcp://") {
		opts = append(opts, client.WithTLSClientConfig(filepath.Join(dir, "ca.pem"), filepath.Join(dir, "cert.pem"), filepath.Join(dir, "key.pem")))
	} else {
		opts = append(opts, client.WithScheme("http"))
	}
	c, err := client.New(opts...)
	if err != nil {
		return nil, api.Errorf(api.CodeUnavailable, "%s engine: the daemon cannot be talked to", e.opts.Name).WithCause(err)
	}
	d := &daemon{Client: c, host: host}
	e.daemons[host] = d
	return d, nil
}

// findDaemon returns the first that answers, or what is wrong with each.
func (e *Engine) findDaemon(ctx context.Context) (*daemon, []api.Problem) {
	var problems []api.Problem
	for _, host := range e.opts.Hosts {
		if p := checkHost(host, e.opts.CertDir); p != nil {
			problems = append(problems, *p)
			continue
		}
		d, err := e.daemonAt(host)
		if err == nil {
			_, err = d.Ping(ctx, client.PingOptions{})
		}
		if err == nil {
			return d, nil
		}
		problems = append(problems, api.Problem{What: "the daemon at " + host + " does not answer: " + brief(err)})
	}
	return nil, problems
}

// brief is an error in one line of bounded length, for the operator.
func brief(err error) string {
	text := strings.Join(strings.Fields(err.Error()), " ")
	if len(text) > 300 {
		text = text[:300] + "..."
	}
	return strings.ToValidUTF8(text, "?")
}
