//go:build linux

package main

import (
	"bytes"
	"context"
	"errors"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	erofs "github.com/erofs/go-erofs"

	"github.com/cloche-dev/cloche/client"
)

func TestQuantileIsASample(t *testing.T) {
	samples := []float64{5, 1, 4, 2, 3, 9, 8, 7, 6, 10}
	for q, want := range map[float64]float64{0: 1, 0.5: 5, 0.9: 9, 1: 10} {
		if got := quantile(samples, q); got != want {
			t.Errorf("quantile %g is %g, want %g", q, got, want)
		}
	}
	if got := quantile(samples[:1], 0.9); got != 5 {
		t.Errorf("quantile of one sample is %g, want 5", got)
	}
	if got := quantile(nil, 0.5); !math.IsNaN(got) {
		t.Errorf("quantile of nothing is %g, want not a number", got)
	}
}

func TestRoundsInterleave(t *testing.T) {
	var order []string
	failing := func(name string, fails int) subject {
		runs := 0
		return subject{name: name, run: func(context.Context) (measure, error) {
			order = append(order, name)
			if runs++; runs == fails {
				return measure{}, errors.New("broken")
			}
			return measure{Total: time.Duration(runs) * time.Millisecond}, nil
		}}
	}
	var dropped []string
	got, err := rounds(t.Context(), 2, []subject{failing("a", 0), failing("b", 3), failing("c", 0)},
		func(name string, err error) { dropped = append(dropped, name+": "+err.Error()) })
	if err != nil {
		t.Fatal(err)
	}
	if want := "abc" + "bca" + "cab" + "ca"; strings.Join(order, "") != want {
		t.Errorf("order is %s, want %s", strings.Join(order, ""), want)
	}
	if want := []string{"b: round 3: broken"}; !slices.Equal(dropped, want) {
		t.Errorf("dropped %q, want %q", dropped, want)
	}
	if len(got) != 2 || got[0].Subject != "a" || got[1].Subject != "c" || !slices.Equal(got[0].TotalMS, []float64{3, 4}) {
		t.Errorf("series %+v, want a and c with the samples after the %d warm-ups", got, warmups)
	}
}

// TestRoundsOfASlowSubject: it warms up once and has fewer samples, and what it measures
// beside goes into a series of its own.
func TestRoundsOfASlowSubject(t *testing.T) {
	runs := 0
	slow := subject{name: "slow", most: 2, also: "slow, beside", run: func(context.Context) (measure, error) {
		runs++
		return measure{Total: time.Duration(runs) * time.Millisecond, Also: time.Duration(10*runs) * time.Millisecond}, nil
	}}
	quick := subject{name: "quick", run: func(context.Context) (measure, error) { return measure{Total: time.Millisecond}, nil }}
	got, err := rounds(t.Context(), 5, []subject{slow, quick}, func(name string, err error) { t.Errorf("dropped %s: %v", name, err) })
	if err != nil {
		t.Fatal(err)
	}
	if len(got) != 3 || !slices.Equal(got[0].TotalMS, []float64{2, 3}) || got[1].Subject != "slow, beside" || !slices.Equal(got[1].TotalMS, []float64{20, 30}) || len(got[2].TotalMS) != 5 {
		t.Errorf("series %+v", got)
	}
}

func TestRoundsEndWithContext(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	_, err := rounds(ctx, 5, []subject{{name: "a", run: func(context.Context) (measure, error) {
		cancel()
		return measure{}, errors.New("killed")
	}}}, func(name string, err error) { t.Errorf("dropped %s: %v, but it was the context that ended", name, err) })
	if !errors.Is(err, context.Canceled) {
		t.Errorf("error %v, want canceled", err)
	}
}

func TestProcessProvesItsWork(t *testing.T) {
	m, err := process(t.Context(), "ready\n", nil, "/bin/sh", "-c", "echo ready; exec cat /dev/null")
	if err != nil {
		t.Fatal(err)
	}
	if m.First <= 0 || m.Total < m.First {
		t.Errorf("first %v, total %v: want 0 < first ≤ total", m.First, m.Total)
	}
	if m, err := process(t.Context(), "", nil, "/bin/sh", "-c", ":"); err != nil || m.First != 0 {
		t.Errorf("a silent program: %+v, %v: want no first output and no error", m, err)
	}
	for script, want := range map[string]string{"echo other": "wrote", "echo ready; exit 3": "status 3", "echo why >&2; false": "why"} {
		if _, err := process(t.Context(), "ready\n", nil, "/bin/sh", "-c", script); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: error %v, want one with %q", script, err, want)
		}
	}
}

func TestJudge(t *testing.T) {
	r := report{Series: []series{
		{Subject: "ours", FirstMS: []float64{40, 50, 60}},
		{Subject: "peer", FirstMS: []float64{90, 100, 110}},
	}}
	r.judge([]goal{
		{what: "met", subject: "ours", metric: first, peer: "peer", maxRatio: 0.5},
		{what: "missed", subject: "ours", metric: first, peer: "peer", maxRatio: 0.49},
		{what: "absolute", subject: "ours", metric: first, maxMS: 49},
		{what: "added", subject: "peer", metric: first, peer: "ours", maxMS: 50},
		{what: "too much added", subject: "peer", metric: first, peer: "ours", maxMS: 49},
		{what: "no peer", subject: "ours", metric: first, peer: "nobody", maxRatio: 1},
		{what: "no subject", subject: "nobody", metric: first, maxMS: 1},
	})
	got := map[string]bool{}
	for _, v := range r.Goals {
		got[v.What] = v.Met
	}
	if len(got) != 5 || !got["added"] || got["too much added"] || !got["met"] || got["missed"] || got["absolute"] {
		t.Errorf("verdicts %v, want met and added, and not missed, absolute and too much added", got)
	}
	table := r.markdown()
	for _, want := range []string{"| met | 50.0 | peer | 100.0 | 0.50 | 0.44 | ≤ 0.5 | yes |", "| ≤ 49 ms | **no** |", "| added | 100.00 | ours | 50.00 | +50.00 ms | | ≤ +50 ms | yes |", "| 90.0 | 100.0 | 110.0 |"} {
		if !strings.Contains(table, want) {
			t.Errorf("the table lacks %q:\n%s", want, table)
		}
	}
}

// TestEveryGoalNamesSubjects keeps a renamed subject from silently losing its
// goal.
func TestEveryGoalNamesSubjects(t *testing.T) {
	known := []string{
		imageWarm, imageFresh, imageOnce, daemonHost, cliHost, runscImage, runscImageTrue, runscHost, runscHostTrue, dockerRun, bwrapRun,
		daemonExec, staticExec, imageExec, dockerExec, runscExec, floorExec,
		attachFirst, oneFollower, manyFollowers, bigStream, reconcile,
		imageStart, hostStart, imagePython, hostPython, clochePull, podmanPull,
		containerExec, linkConnect, linkDown, linkUp, runscConnect, runscDown, runscUp,
		recordReplaced, createOnDisk, createInMemory, createOnDiskNative, createInMemoryNative,
		cliExec, poolTaken, poolCold, poolMounts, poolMountsCold, poolNetwork, poolNetworkCold, poolExec, poolCLI,
		versionExec, otherExec, versionCreate, otherCreate, versionBuild, otherBuild,
		suspendWake, suspendCold, memoryCreate, memoryCold, sleepersWake, forkMany, forkPause, runCode, runCodeNative, kernelInside, kernelNative, e2bCreate, e2bRun, ourCreate, ourRun, pageURL, pageForward, buildCached, fileUp, fileDown, serverUp, serverDown,
	}
	bridged := &endpointBench{bridged: map[string]*client.Sandbox{}}
	for _, engine := range endpointEngines() {
		bridged.bridged[engine] = &client.Sandbox{}
	}
	for _, s := range bridged.subjects() {
		known = append(known, s.name, s.also)
	}
	known = append(known, nativeExec)
	for _, s := range (&nativeBench{bwrap: "bwrap"}).subjects() {
		known = append(known, s.name, s.also)
	}
	for _, kind := range []string{plainPrivate, boundedPrivate, plainNamed, boundedNamed} {
		known = append(known, writeIn(kind, "256 MiB"), writeIn(kind, "256 MiB synced"))
	}
	for _, t := range trees() {
		for _, tool := range []string{clocheTar, plainTar, insideTar} {
			known = append(known, tarOf(tool, wayOut, t), tarOf(tool, wayIn, t))
		}
	}
	for _, g := range goals() {
		if !slices.Contains(known, g.subject) || g.peer != "" && !slices.Contains(known, g.peer) {
			t.Errorf("goal %q compares %q with %q: not both are subjects", g.what, g.subject, g.peer)
		}
		if (g.maxRatio == 0) == (g.maxMS == 0) || g.peer == "" && g.maxMS == 0 {
			t.Errorf("goal %q wants either a peer and a ratio, or milliseconds, over a peer's where there is one", g.what)
		}
	}
}

func TestErofsImageHoldsTheProgram(t *testing.T) {
	path := filepath.Join(t.TempDir(), "image.erofs")
	program := bytes.Repeat([]byte("busybox"), 3000) // longer than what go-erofs stores inline
	if err := writeErofs(path, program); err != nil {
		t.Fatal(err)
	}
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	img, err := erofs.Open(f)
	if err != nil {
		t.Fatal(err)
	}
	got, err := fs.ReadFile(img, "bin/busybox")
	if err != nil || !bytes.Equal(got, program) {
		t.Errorf("bin/busybox has %d bytes, %v; want the program's %d", len(got), err, len(program))
	}
	if fi, err := fs.Stat(img, "bin/busybox"); err != nil || fi.Mode().Perm() != 0o755 {
		t.Errorf("bin/busybox: %v, %v; want mode 0755", fi, err)
	}
}

func TestResidentMB(t *testing.T) {
	got, err := residentMB("Name:\tcloche-agent\nVmRSS:\t  10000 kB\nThreads:\t5\n")
	if err != nil || got != 10.24 {
		t.Errorf("resident %g, %v, want 10.24", got, err)
	}
	if _, err := residentMB("Name:\tcloche-agent\n"); err == nil {
		t.Error("a status without VmRSS was accepted")
	}
}

func TestStartAndWait(t *testing.T) {
	b := &bench{}
	if err := startAndWait(command(t.Context(), "/bin/sh", "-c", "echo out of luck >&2; exit 7"), "ready", b); err == nil || !strings.Contains(err.Error(), "out of luck") {
		t.Errorf("error %v, want one with the program's own words", err)
	}
	if err := startAndWait(command(t.Context(), "/bin/sh", "-c", "echo is ready >&2; exec cat"), "ready", b); err != nil {
		t.Fatal(err)
	}
	if err := b.close(); err != nil {
		t.Errorf("close: %v", err)
	}
}

func TestParseRefuses(t *testing.T) {
	for _, args := range [][]string{{"create"}, {"-n", "0"}, {"-idle", "0"}, {"-name", "../x"}, {"-only", "("}, {"-nonsense"}} {
		if _, err := parse(args); err == nil {
			t.Errorf("%q was accepted", args)
		}
	}
	o, err := parse([]string{"-n", "5", "-only", "exec"})
	if err != nil || o.n != 5 || !o.only.MatchString("exec") || !o.cold {
		t.Errorf("options %+v, %v", o, err)
	}
}

func TestCleanHidesDirectories(t *testing.T) {
	b := &bench{dir: "/tmp/cbench-1", root: "/src/cloche"}
	if got := b.clean("open /tmp/cbench-1/x in\n /src/cloche/bench"); got != "open $TMP/x in $SRC/bench" {
		t.Errorf("clean gave %q", got)
	}
}

// TestHold: a ratio is held by its band, and what was not measured is not held.
func TestHold(t *testing.T) {
	bands := []band{{goal{what: "a promise", subject: "ours", metric: first, peer: "peer"}, 0.5}}
	for name, c := range map[string]struct {
		ours, peer []float64
		held       bool
	}{
		"inside":                    {[]float64{40, 50}, []float64{90, 110}, true},
		"outside":                   {[]float64{60, 70}, []float64{90, 110}, false},
		"inside by the fastest":     {[]float64{40, 300, 300}, []float64{90, 100, 110}, true},
		"inside by the medians":     {[]float64{48, 50, 51}, []float64{90, 110, 111}, true},
		"no sample of this metric":  {nil, []float64{90}, false},
		"the peer was not measured": {[]float64{40}, nil, false},
	} {
		r := report{Series: []series{{Subject: "ours", FirstMS: c.ours}, {Subject: "peer", FirstMS: c.peer}}}
		if err := r.hold(bands); (err == nil) != c.held {
			t.Errorf("%s: %v, want it held: %v", name, err, c.held)
		}
	}
	if err := (&report{}).hold(bands); err == nil || !strings.Contains(err.Error(), "not measured") {
		t.Errorf("an empty report: %v", err)
	}
}

// TestSpecListsBands: what is published is what is held.
func TestSpecListsBands(t *testing.T) {
	spec, err := os.ReadFile("SPEC.md")
	if err != nil {
		t.Fatal(err)
	}
	if want := specTable(bands()); !strings.Contains(string(spec), want) {
		t.Errorf("SPEC.md lacks this table:\n%s", want)
	}
	for _, b := range bands() {
		if b.most <= b.maxRatio {
			t.Errorf("%s: the band %g is not wider than the promise %g", b.what, b.most, b.maxRatio)
		}
	}
}
