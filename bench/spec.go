//go:build linux

package main

import (
	"errors"
	"fmt"
	"slices"
	"strings"
)

// checkedGroups are the groups of the short form, which CI runs.
const checkedGroups = "^(create|pool|exec|native|tar)$"

// checkedRounds is how many rounds it has unless it is told otherwise.
const checkedRounds = 8

// checkedTars is how many samples it has of an archive of many files, which take seconds on some disks.
const checkedTars = 4

// held says whether a subject is in a band.
func held(name string) bool {
	return slices.ContainsFunc(bands(), func(b band) bool { return b.subject == name || b.peer == name })
}

// band is a promise of SPEC.md: a ratio of two subjects of one run.
type band struct {
	goal
	// most is what CI allows: more than what was measured on a quiet machine, so that a busy one passes, and less than
	// what a regression makes of it.
	most float64
}

// bands are what the short form holds.
func bands() []band {
	small := trees()[len(trees())-1]
	of := func(what, subject string, m metric, peer string, promise, most float64) band {
		return band{goal{what: what, subject: subject, metric: m, peer: peer, maxRatio: promise}, most}
	}
	return []band{
		of("create from the pool → first output, against an exec in a live sandbox", poolTaken, first, poolExec, 2, 3.5),
		of("the same, against a create without a pool", poolTaken, first, poolCold, 0.5, 0.75),
		of("the same with mounts and rules", poolMounts, first, poolMountsCold, 0.5, 0.8),
		of("the same with a network", poolNetwork, first, poolNetworkCold, 0.5, 0.8),
		of("whole `cloche run -- true` with a daemon, against `docker run`", poolCLI, total, dockerRun, 0.2, 0.35),
		of("create → first output from an image, against `runsc run`", imageWarm, first, runscImage, 0.55, 0.9),
		of("create → first output, `host` and a workspace, against `runsc run`", daemonHost, first, runscHost, 0.8, 1.1),
		of("whole `cloche run -- true` without a daemon, against `runsc run`", cliHost, total, runscHostTrue, 1.6, 2.2),
		of("exec over the socket, against `docker exec`", daemonExec, total, dockerExec, 0.17, 0.3),
		of("whole `cloche exec SANDBOX -- true`, against `docker exec`", cliExec, total, dockerExec, 0.35, 0.5),
		of("create → first output on native, against bubblewrap with the same root", nativeCold, first, bwrapSame, 3.5, 5.5),
		of("the same when an agent waits", nativePooled, first, bwrapSame, 1.6, 3),
		of("5,000 small files in, against plain tar", tarOf(clocheTar, wayIn, small), total, tarOf(plainTar, wayIn, small), 2, 3),
		of("5,000 small files out, against plain tar", tarOf(clocheTar, wayOut, small), total, tarOf(plainTar, wayOut, small), 2, 3),
	}
}

// hold returns what of the report is outside of its band, or was not measured. The ratio of the medians or the ratio of
// the fastest samples has to be inside: other programs slow single samples, and a regression slows all.
func (r *report) hold(all []band) error {
	var errs []error
	for _, b := range all {
		ours, ok := r.find(b.subject)
		peer, found := r.find(b.peer)
		if !ok || !found {
			errs = append(errs, fmt.Errorf("%s: not measured", b.what))
			continue
		}
		medians := ratio(median(ours.of(b.metric)), median(peer.of(b.metric)))
		fastest := ratio(quantile(ours.of(b.metric), 0), quantile(peer.of(b.metric), 0))
		if !(min(medians, fastest) <= b.most) { // and not a number is outside
			errs = append(errs, fmt.Errorf("%s: %.2f by the medians and %.2f by the fastest, at most %g", b.what, medians, fastest, b.most))
		}
	}
	return errors.Join(errs...)
}

// specTable is the table of SPEC.md.
func specTable(all []band) string {
	var b strings.Builder
	b.WriteString("| promise | ratio, quiet machine | band in CI | subject | against |\n|---|--:|--:|---|---|\n")
	for _, p := range all {
		fmt.Fprintf(&b, "| %s | ≤ %g | ≤ %g | %s, %s | %s |\n", p.what, p.maxRatio, p.most, p.subject, p.metric, p.peer)
	}
	return b.String()
}
