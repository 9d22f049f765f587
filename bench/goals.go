//go:build linux

package main

import "math"

// goal compares one of our subjects with a peer, or with a number.
type goal struct {
	what    string
	subject string
	metric  metric
	// peer is the subject to compare with; empty compares with maxMS.
	peer string
	// maxRatio is the largest allowed quotient of the medians, ours by the peer's.
	maxRatio float64
	maxMS    float64
}

// goals are the numbers that this release has to reach.
func goals() []goal {
	return []goal{
		{what: "create → first output, EROFS root, no host directory", subject: imageWarm, metric: first, peer: runscImage, maxRatio: 0.55},
		{what: "create → first output, host + workspace, daemon", subject: daemonHost, metric: first, peer: runscHost, maxRatio: 0.8},
		{what: "whole process, EROFS root", subject: imageOnce, metric: total, peer: runscImageTrue, maxRatio: 0.7},
		{what: "whole process, `cloche run -- true`, host + workspace", subject: cliHost, metric: total, peer: runscHostTrue, maxRatio: 0.9},
		{what: "create → first output, host + workspace, against Docker", subject: daemonHost, metric: first, peer: dockerRun, maxRatio: 0.4},
		{what: "create → first output, EROFS root, against Docker", subject: imageWarm, metric: first, peer: dockerRun, maxRatio: 0.4},
		{what: "exec /bin/true over the socket", subject: daemonExec, metric: total, maxMS: 8},
		{what: "exec of a static true over the socket", subject: staticExec, metric: total, maxMS: 8},
		{what: "exec /bin/true, against docker exec", subject: daemonExec, metric: total, peer: dockerExec, maxRatio: 0.1},
		{what: "exec of the same static true, against docker exec", subject: staticExec, metric: total, peer: dockerExec, maxRatio: 0.1},
	}
}

// verdict is what became of a goal.
type verdict struct {
	What    string  `json:"what"`
	Subject string  `json:"subject"`
	Metric  metric  `json:"metric"`
	OursMS  float64 `json:"ours_ms"`
	Peer    string  `json:"peer,omitempty"`
	PeerMS  float64 `json:"peer_ms,omitempty"`
	// Ratio is ours by the peer's; Goal is the largest allowed, a ratio where
	// there is a peer and milliseconds where there is none.
	Ratio float64 `json:"ratio,omitempty"`
	// MinRatio is the same of the fastest samples: where other programs have the
	// machine's processors too, it says what the medians hide.
	MinRatio float64 `json:"min_ratio,omitempty"`
	Goal     float64 `json:"goal"`
	Met      bool    `json:"met"`
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
		}
		r.Goals = append(r.Goals, v)
	}
}

func ratio(ours, peers float64) float64 { return math.Round(ours/peers*1000) / 1000 }
