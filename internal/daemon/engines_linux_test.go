package daemon_test

import (
	"flag"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/cloche-dev/cloche/internal/engine"
	"github.com/cloche-dev/cloche/internal/engine/docker"
	"github.com/cloche-dev/cloche/internal/engine/e2b"
	"github.com/cloche-dev/cloche/internal/engine/gvisor"
	"github.com/cloche-dev/cloche/internal/engine/native"
	"github.com/cloche-dev/cloche/internal/engine/nsjail"
	"github.com/cloche-dev/cloche/internal/engine/oci"
)

var update = flag.Bool("update", false, "write the table in docs/engines.md")

const (
	enginesPage = "../../docs/engines.md"
	tableBegin  = "<!-- made by go test ./internal/daemon -run Table -update -->\n"
	tableEnd    = "<!-- end -->\n"
)

// described is an engine that can be put on the page.
type described interface {
	engine.Engine
	engine.Able
	Close() error
}

// TestTableOfEngines holds the page about engines against what they say of themselves,
// which enginetest holds against what they do.
func TestTableOfEngines(t *testing.T) {
	page, err := os.ReadFile(enginesPage)
	if err != nil {
		t.Fatal(err)
	}
	before, rest, ok := strings.Cut(string(page), tableBegin)
	old, after, end := strings.Cut(rest, tableEnd)
	if !ok || !end {
		t.Fatalf("there is no place for the table in %s", enginesPage)
	}
	table := tableOf(t)
	if *update {
		if err := os.WriteFile(enginesPage, []byte(before+tableBegin+table+tableEnd+after), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	if old != table {
		t.Errorf("the table is stale: run go test ./internal/daemon -run Table -update; it is\n%s", table)
	}
}

func tableOf(t *testing.T) string {
	t.Helper()
	rows := []string{"| |", "|---|", "| tier |", "| kernel |", "| egress by rules |", "| rules on paths in directories of the host |", "| what those refuse is told |", "| pause |", "| suspend to disk |", "| snapshot of the root |"}
	for _, e := range builtEngines(t) {
		a := e.Abilities()
		kernel := "its own"
		if _, shares := e.(engine.Host); shares {
			kernel = "the host's"
		} else if _, remote := e.(engine.Remote); remote {
			kernel = "the service's"
		}
		for i, cell := range []string{" `" + e.Name() + "` |", "---|", " " + string(a.Tier) + " |", " " + kernel + " |", yes(a.Link), yes(a.Pinned), yes(a.Refusals), yes(a.Pause), yes(a.Suspend), yes(a.Layer)} {
			rows[i] += cell
		}
	}
	return strings.Join(rows, "\n") + "\n"
}

func yes(can bool) string {
	if can {
		return " yes |"
	}
	return " – |"
}

// builtEngines are the engines of this build. None of them is started.
func builtEngines(t *testing.T) []described {
	t.Helper()
	dir := t.TempDir()
	var all []described
	add := func(e described, err error) {
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { e.Close() })
		all = append(all, e)
	}
	gv, err := gvisor.New(gvisor.Options{StateDir: dir + "/gvisor"})
	add(gv, err)
	nat, err := native.New(native.Options{StateDir: dir + "/native", RootsDir: dir + "/roots"})
	add(nat, err)
	oc, err := oci.New(oci.Options{StateDir: dir + "/oci", RootsDir: dir + "/roots", IDsDir: dir + "/native"})
	add(oc, err)
	jail, err := nsjail.New(nsjail.Options{StateDir: dir + "/nsjail", RootsDir: dir + "/roots", IDsDir: dir + "/native"})
	add(jail, err)
	for _, name := range []string{docker.Docker, docker.Podman} {
		e, err := docker.New(docker.Options{Name: name, Hosts: []string{fmt.Sprintf("unix://%s/%s.sock", dir, name)}, Inner: func() ([]byte, error) { return nil, nil }})
		add(e, err)
	}
	remote, err := e2b.New(e2b.Options{Inner: func() ([]byte, error) { return nil, nil }})
	add(remote, err)
	return all
}
