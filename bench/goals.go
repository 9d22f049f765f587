//go:build linux

package main

import (
	"math"
	"slices"
)

// goal compares one of our subjects with a peer, or with a number.
type goal struct {
	what    string
	subject string
	metric  metric
	// peer is the subject to compare with; empty compares with maxMS.
	peer string
	// maxRatio is the largest allowed quotient of the medians, ours by the peer's; where
	// it is 0, maxMS is what ours may be over the peer's.
	maxRatio float64
	maxMS    float64
}

// goals are the numbers that this release has to reach.
func goals() []goal {
	return slices.Concat(poolGoals(), tarGoals(), endpointGoals(), clientGoals(), []goal{
		{what: "create → first output, EROFS root, no host directory", subject: imageWarm, metric: first, peer: runscImage, maxRatio: 0.55},
		{what: "the same with no sentry ready", subject: imageFresh, metric: first, peer: runscImage, maxRatio: 0.55},
		{what: "create → first output, host + workspace, daemon", subject: daemonHost, metric: first, peer: runscHost, maxRatio: 0.8},
		{what: "whole process, EROFS root", subject: imageOnce, metric: total, peer: runscImageTrue, maxRatio: 0.7},
		{what: "whole process, `cloche run -- true`, host + workspace", subject: cliHost, metric: total, peer: runscHostTrue, maxRatio: 0.9},
		{what: "create → first output, host + workspace, against Docker", subject: daemonHost, metric: first, peer: dockerRun, maxRatio: 0.4},
		{what: "create → first output, EROFS root, against Docker", subject: imageWarm, metric: first, peer: dockerRun, maxRatio: 0.4},
		{what: "exec /bin/true over the socket", subject: daemonExec, metric: total, maxMS: 8},
		{what: "exec of a static true over the socket", subject: staticExec, metric: total, maxMS: 8},
		{what: "exec /bin/true, against docker exec", subject: daemonExec, metric: total, peer: dockerExec, maxRatio: 0.1},
		{what: "exec of the same static true, against docker exec", subject: staticExec, metric: total, peer: dockerExec, maxRatio: 0.1},
		{what: "whole process, `cloche exec SANDBOX -- true`, against docker exec", subject: cliExec, metric: total, peer: dockerExec, maxRatio: 0.17},
		{what: "exec in a container of Docker's, against docker exec", subject: containerExec, metric: total, peer: dockerExec, maxRatio: 0.1},
		{what: "create → first output, native, against bwrap with the same root", subject: nativeCold, metric: first, peer: bwrapSame, maxRatio: 2},
		{what: "the same with an agent that waits", subject: nativePooled, metric: first, peer: bwrapSame, maxRatio: 1.2},
		{what: "exec in a native sandbox, against no isolation", subject: nativeExec, metric: total, peer: nativeFloor, maxRatio: 2},
		{what: "attach to a process until its first byte", subject: attachFirst, metric: first, maxMS: 3},
		{what: "a line to 200 followers, against one", subject: manyFollowers, metric: total, peer: oneFollower, maxRatio: 1.2},
		{what: "256 MB out of a process (150 MB/s)", subject: bigStream, metric: total, maxMS: streamBytes / 150e3},
		{what: "256 MiB into a private workspace with a size, against one without", subject: writeIn(boundedPrivate, "256 MiB"), metric: total, peer: writeIn(plainPrivate, "256 MiB"), maxRatio: 1.05},
		{what: "the same, synced at the end", subject: writeIn(boundedPrivate, "256 MiB synced"), metric: total, peer: writeIn(plainPrivate, "256 MiB synced"), maxRatio: 1.05},
		{what: "256 MiB into a named workspace with a size, against one without", subject: writeIn(boundedNamed, "256 MiB"), metric: total, peer: writeIn(plainNamed, "256 MiB"), maxRatio: 1.05},
		{what: "the same, synced at the end", subject: writeIn(boundedNamed, "256 MiB synced"), metric: total, peer: writeIn(plainNamed, "256 MiB synced"), maxRatio: 1.05},
		{what: "second start of an image, against host", subject: imageStart, metric: first, peer: hostStart, maxRatio: 1.1},
		{what: "the same, python3 with its libraries", subject: imagePython, metric: first, peer: hostPython, maxRatio: 1.1},
		{what: "pull and unpack, against podman", subject: clochePull, metric: total, peer: podmanPull, maxRatio: 1},
		{what: "connect by name through the link, rules and all", subject: linkConnect, metric: total, maxMS: 1},
		{what: "512 MiB in through the link, against runsc's own stack (50 %)", subject: linkDown, metric: total, peer: runscDown, maxRatio: 2},
		{what: "512 MiB out through the link, against runsc's own stack (50 %)", subject: linkUp, metric: total, peer: runscUp, maxRatio: 2},
		{what: "an answer of a suspended interpreter, against starting it cold", subject: suspendWake, metric: total, peer: suspendCold, maxRatio: 0.5},
		{what: "a web app of 64 MiB from a snapshot with memory, against starting it", subject: memoryCreate, metric: total, peer: memoryCold, maxRatio: 0.2},
		{what: "a request to one of 1,000 suspended", subject: sleepersWake, metric: total, maxMS: 100},
		{what: "20 forks that answer", subject: forkMany, metric: total, maxMS: 900},
		{what: "the pause of the parent of a fork", subject: forkPause, metric: total, maxMS: 50},
		{what: "the same by the clock", subject: suspendWake, metric: total, maxMS: 110},
		{what: "a record replaced and synced", subject: recordReplaced, metric: total, maxMS: 2},
		{what: "create with its records on the disk, against records in memory (10 %)", subject: createOnDisk, metric: first, peer: createInMemory, maxRatio: 1.11},
		{what: "the same, native", subject: createOnDiskNative, metric: first, peer: createInMemoryNative, maxRatio: 1.11},
		{what: "exec /bin/true, against the other version", subject: versionExec, metric: total, peer: otherExec, maxRatio: 1.01},
		{what: "create → first output, against the other version", subject: versionCreate, metric: first, peer: otherCreate, maxRatio: 1.05},
		{what: "a build of many small programs, against the other version (1 %)", subject: versionBuild, metric: total, peer: otherBuild, maxRatio: 1.01},
		{what: "daemon killed and back with 50 sandboxes", subject: reconcile, metric: total, maxMS: 3000},
	})
}

// tarGoals: at least 70 % of the throughput of plain tar. Inside is what the engine
// lets a program reach at all.
func tarGoals() []goal {
	var all []goal
	for _, t := range trees() {
		for _, way := range []string{wayOut, wayIn} {
			for _, peer := range []string{plainTar, insideTar} {
				all = append(all, goal{
					what: way + " " + t.name + " (70 % of plain " + peer + ")", subject: tarOf(clocheTar, way, t), metric: total, peer: tarOf(peer, way, t), maxRatio: 1.43,
				})
			}
		}
	}
	return all
}

// endpointGoals: what an engine adds to the same without a sandbox, and what it is beside
// files that are polled.
func endpointGoals() []goal {
	var all []goal
	for _, engine := range endpointEngines() {
		added := map[string]float64{"gvisor": 3, "native": 1}[engine]
		post := through(endpointPost, engine)
		all = append(all, []goal{
			{what: "POST through an endpoint, " + engine + ", more than without a sandbox", subject: post, metric: total, peer: through(endpointPost, direct), maxMS: added},
			{what: "the slowest hundredth of them, more than without", subject: slowest(post), metric: total, peer: slowest(through(endpointPost, direct)), maxMS: 5},
			{what: "POST through an endpoint, " + engine + ", against files that are polled", subject: post, metric: total, peer: through(endpointPost, byFiles), maxRatio: 0.05},
			{what: "first byte of an event stream, " + engine, subject: through(endpointEvent, engine), metric: first, maxMS: 5},
			{what: "first byte of an event stream, " + engine + ", against files that are polled", subject: through(endpointEvent, engine), metric: first, peer: through(endpointEvent, byFiles), maxRatio: 0.05},
			{what: "a request beside 63 that hang, " + engine, subject: through(endpointBeside, engine), metric: total, maxMS: 10},
		}...)
	}
	return append(all, goal{
		what: "16 evaluations through endpoints, against 16 on the host (2 % more)", subject: through(endpointTurns, "gvisor"), metric: total, peer: through(endpointTurns, direct), maxRatio: 1.02,
	})
}

// verdict is what became of a goal.
type verdict struct {
	What    string  `json:"what"`
	Subject string  `json:"subject"`
	Metric  metric  `json:"metric"`
	OursMS  float64 `json:"ours_ms"`
	Peer    string  `json:"peer,omitempty"`
	PeerMS  float64 `json:"peer_ms,omitempty"`
	// Ratio is ours by the peer's; Goal is the largest allowed, a ratio with
	// a peer, and milliseconds without one or where Added is the difference to the
	// peer.
	Ratio float64 `json:"ratio,omitempty"`
	// MinRatio is the same of the fastest samples: where other programs have the
	// machine's processors too, it says what the medians hide.
	MinRatio float64  `json:"min_ratio,omitempty"`
	Added    *float64 `json:"added_ms,omitempty"`
	Goal     float64  `json:"goal"`
	Met      bool     `json:"met"`
}

// judge compares what was measured with the goals. Goals whose subject or peer
// was not measured are left out: the report lists these apart.
func (r *report) judge(all []goal) {
	r.Goals = nil
	for _, g := range all {
		ours, ok := r.find(g.subject)
		if !ok {
			continue
		}
		v := verdict{What: g.what, Subject: g.subject, Metric: g.metric, OursMS: median(ours.of(g.metric)), Peer: g.peer}
		if g.peer == "" {
			v.Goal, v.Met = g.maxMS, v.OursMS <= g.maxMS
		} else {
			peer, ok := r.find(g.peer)
			if !ok {
				continue
			}
			v.PeerMS = median(peer.of(g.metric))
			v.Ratio = ratio(v.OursMS, v.PeerMS)
			v.MinRatio = ratio(quantile(ours.of(g.metric), 0), quantile(peer.of(g.metric), 0))
			v.Goal, v.Met = g.maxRatio, v.Ratio <= g.maxRatio
			if g.maxRatio == 0 {
				v.Added = new(math.Round((v.OursMS-v.PeerMS)*1000) / 1000)
				v.Goal, v.Met = g.maxMS, *v.Added <= g.maxMS
			}
		}
		r.Goals = append(r.Goals, v)
	}
}

func ratio(ours, peers float64) float64 { return math.Round(ours/peers*1000) / 1000 }
