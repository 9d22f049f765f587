package api

import "time"

// TargetReplay is the prefix of an endpoint target that answers from a recording. The recording's
// name follows.
const TargetReplay = "replay:"

// Values of EndpointReplay.Match.
const (
	ReplayByDigest = "digest"
	ReplayByOrder  = "order"
)

// EndpointReplay says how an endpoint answers from a recording.
type EndpointReplay struct {
	// Match is "digest" (the default) or "order". With "digest", a request gets the next recorded
	// answer to a request with the same method, path, query and body; JSON bodies are compared by
	// value. With "order", the first request gets the first answer and so on, as long as method
	// and path are the same.
	Match string `json:"match,omitempty"`
	// Pace makes each answer take as long as it took when it was recorded.
	Pace bool `json:"pace,omitempty"`
}

// RecordingInfo describes a recording: the exchanges of an endpoint, which another endpoint can
// replay.
type RecordingInfo struct {
	// Name is unique for its tenant.
	Name   string `json:"name"`
	Tenant string `json:"tenant,omitempty"`
	// Sandbox and Endpoint say where it was made. They are empty for a recording that was
	// uploaded.
	Sandbox   string    `json:"sandbox,omitempty"`
	Endpoint  string    `json:"endpoint,omitempty"`
	CreatedAt time.Time `json:"created_at"`
	// Exchanges is the number of exchanges that it holds. Omitted counts those that it does not
	// hold because they were too large, were cut off before an answer, or must not be kept.
	Exchanges int   `json:"exchanges"`
	Omitted   int   `json:"omitted,omitempty"`
	Bytes     int64 `json:"bytes"`
	// Active is set while the recording is being made.
	Active bool `json:"active,omitempty"`
}

// RecordingList lists recordings, sorted by name.
type RecordingList struct {
	Recordings []RecordingInfo `json:"recordings"`
}
