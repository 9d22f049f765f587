package api

import "time"

// TargetReplay begins the target of an endpoint that answers out of a recording, whose
// name follows.
const TargetReplay = "replay:"

// How the answers of a recording are found; see EndpointReplay.Match.
const (
	ReplayByDigest = "digest"
	ReplayByOrder  = "order"
)

// EndpointReplay says how an endpoint answers out of a recording.
type EndpointReplay struct {
	// Match is "digest", which is what empty means: a request gets the next answer to one
	// of the same method, path, query and body, where JSON is compared by what it says.
	// "order" gives the first request the first answer and so on, as long as method and
	// path are the same.
	Match string `json:"match,omitempty"`
	// Pace has answers take as long as they took.
	Pace bool `json:"pace,omitempty"`
}

// RecordingInfo is what is known of a recording: the exchanges that went through an
// endpoint, which another endpoint can replay.
type RecordingInfo struct {
	// Name is unique for its tenant.
	Name   string `json:"name"`
	Tenant string `json:"tenant,omitempty"`
	// Sandbox and Endpoint are where it was made; empty of one that was put here.
	Sandbox   string    `json:"sandbox,omitempty"`
	Endpoint  string    `json:"endpoint,omitempty"`
	CreatedAt time.Time `json:"created_at"`
	// Exchanges is how many it holds, Omitted how many it does not, being too large, cut
	// off before an answer, or not to be kept.
	Exchanges int   `json:"exchanges"`
	Omitted   int   `json:"omitted,omitempty"`
	Bytes     int64 `json:"bytes"`
	// Active: it is being made.
	Active bool `json:"active,omitempty"`
}

// RecordingList is recordings, by name.
type RecordingList struct {
	Recordings []RecordingInfo `json:"recordings"`
}
