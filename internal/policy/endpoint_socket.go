package policy

import (
	"path"
	"slices"
	"strings"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/policy/rules"
)

// cleanListenSocket checks the path of a socket inside the sandbox. Whether the directory belongs
// only to the sandbox is checked inside, after its links are resolved.
func cleanListenSocket(field, socket string, e *api.Endpoint) *api.Error {
	clean, err := cleanTarget(field, socket)
	if err != nil {
		return err.WithHint("write unix:///SOCKET, a path inside such as unix:///run/%s.sock", e.Name)
	}
	if clean != socket || len(socket) > rules.MaxSocketPath || strings.ContainsFunc(socket, func(c rune) bool { return c <= ' ' || c >= 0x7f }) {
		return api.Invalid(field, "%s %s is no path of a socket: absolute, in its shortest form, of at most %d bytes that can be seen", field, rules.Quote(e.Listen), rules.MaxSocketPath).
			WithHint("write unix:///SOCKET, a path inside such as unix:///run/%s.sock", e.Name)
	}
	e.Listen = api.EndpointListenSocket + socket
	return validUser(field+"_user", e.ListenUser)
}

// checkSocketPlaces is a step of Decide. It refuses a socket at a path that the request shares with
// others, or where nothing can be created.
func checkSocketPlaces(d *decision) *api.Error {
	shared := []string{d.spec.Workspace.Path}
	for _, m := range d.spec.Mounts {
		shared = append(shared, m.Target)
	}
	for i, e := range d.spec.Endpoints {
		socket, field := e.Socket(), rules.ElementAt("endpoints", i)+".listen"
		if socket == "" {
			continue
		}
		if slices.ContainsFunc(shared, func(dir string) bool { return rules.Within(socket, dir) }) {
			return api.Invalid(field, "%s %s lies in a workspace or mount, where it would be seen from outside of the sandbox", field, rules.Quote(socket)).
				WithHint("name a path such as /run/%s", path.Base(socket))
		}
		if err := d.checkWritable(field, socket); err != nil {
			return err
		}
	}
	return nil
}

// checkSocketEnv refuses placeholders that have no value for an endpoint with a socket.
func checkSocketEnv(field string, e *api.Endpoint) *api.Error {
	if e.Socket() == "" {
		return nil
	}
	if len(e.Presets) > 0 {
		one := rules.ElementAt(under(field, "presets"), 0)
		return api.Invalid(one, "%s %s gives a URL with a port, and endpoint %s has a socket", one, rules.Quote(e.Presets[0]), rules.Quote(e.Name)).
			WithHint("leave presets out, and let the program connect to the socket; or let it listen at a port")
	}
	for name, value := range e.Env {
		for _, part := range []string{"{base}", "{host}", "{port}"} {
			if strings.Contains(value, part) {
				field := under(field, "env")
				return api.Invalid(field, "%s: %s has %s in it, which an endpoint with a socket does not have", field, rules.Quote(name), part).
					WithHint("it has {path}")
			}
		}
	}
	return nil
}
