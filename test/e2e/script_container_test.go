//go:build linux

package e2e_test

import (
	"context"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/moby/moby/client"
	"github.com/rogpeppe/go-internal/testscript"

	"github.com/cloche-dev/cloche/internal/engine/docker/dockertest"
)

type containersKey struct{}

// scriptContainers are the daemons of one script, by name.
type scriptContainers map[string]*dockertest.Daemon

func (c scriptContainers) close() {
	for _, d := range c {
		_ = d.Close()
	}
}

// container docker|podman start | remote | stop | kill | again | remove SANDBOX | volumes N |
// empty: a daemon of the script's own, of which the settings say where it is.
func cmdContainer(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 2 {
		ts.Fatalf("usage: container docker|podman start|remote|stop|kill|again|remove|volumes|empty")
	}
	all := ts.Value(containersKey{}).(scriptContainers)
	name, d := args[0], all[args[0]]
	if (d == nil) != (args[1] == "start" || args[1] == "remote") {
		ts.Fatalf("the daemon is started once, and before all else")
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	switch args[1] {
	case "start", "remote":
		begin := dockertest.Docker
		if name == "podman" {
			begin = dockertest.Podman
		}
		d, err := begin()
		ts.Check(err)
		all[name] = d
		host := d.Host
		if args[1] == "remote" {
			host, err = d.Remote()
			ts.Check(err)
		}
		settings := name + ": {host: '" + host + "'}\n"
		ts.Check(os.WriteFile(filepath.Join(state(ts).Dir, "settings.yaml"), []byte(settings), 0o600))
	case "volumes":
		list, err := d.Client.VolumeList(ctx, client.VolumeListOptions{})
		ts.Check(err)
		var found []string
		for _, v := range list.Items {
			if v.Labels["dev.cloche.agent"] == "" {
				found = append(found, v.Name)
			}
		}
		if got := strconv.Itoa(len(found)); len(args) != 3 || got != args[2] {
			ts.Fatalf("%s volumes of workspaces, want %s: %s", got, args[2:], strings.Join(found, " "))
		}
	case "stop":
		d.Stop()
	case "kill":
		d.Kill()
	case "again":
		ts.Check(d.Start())
	case "remove":
		list, err := d.Client.ContainerList(ctx, client.ContainerListOptions{Filters: make(client.Filters).Add("label", "dev.cloche.sandbox")})
		ts.Check(err)
		ts.Check(ts.Exec("cloche", "inspect", "--json", args[2]))
		inspected := ts.ReadFile("stdout")
		for _, c := range list.Items {
			if strings.Contains(inspected, c.Labels["dev.cloche.sandbox"]) {
				_, err := d.Client.ContainerRemove(ctx, c.ID, client.ContainerRemoveOptions{Force: true})
				ts.Check(err)
				return
			}
		}
		ts.Fatalf("no container of sandbox %s", args[2])
	case "empty":
		left, err := d.Containers(ctx)
		ts.Check(err)
		if len(left) > 0 {
			ts.Fatalf("left: %s", strings.Join(left, "; "))
		}
	default:
		ts.Fatalf("container cannot %s", args[1])
	}
}
