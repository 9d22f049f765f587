package api

import "time"

// KeySpec is an API key as it is to be made. A key is one tenant's, and never the
// operator's.
type KeySpec struct {
	// Tenant owns what callers with the key make, and is all that they see.
	Tenant string `json:"tenant"`
	// Name says what the key is for; it need not be unique.
	Name string `json:"name,omitempty"`
	// Verbs are all that the key may do; empty is everything that a tenant may.
	// KeyVerbsObserve among them stands for every verb that changes nothing.
	Verbs []string `json:"verbs,omitempty"`
	// Profiles are those of the sandboxes that the key may make and use; empty is
	// all.
	Profiles []string `json:"profiles,omitempty"`
	// ExpiresInMS is how long the key is good for, in milliseconds; 0 is until it is
	// revoked.
	ExpiresInMS int64 `json:"expires_in_ms,omitempty"`
}

// KeyVerbsObserve stands for the verbs that only look.
const KeyVerbsObserve = "observe"

// Key is what is on record about an API key. The key itself is not: only its hash
// is kept.
type Key struct {
	ID     string `json:"id"`
	Tenant string `json:"tenant"`
	Name   string `json:"name,omitempty"`
	// Verbs and Profiles narrow what it may do; empty is no narrowing.
	Verbs     []string   `json:"verbs,omitempty"`
	Profiles  []string   `json:"profiles,omitempty"`
	CreatedAt time.Time  `json:"created_at"`
	ExpiresAt *time.Time `json:"expires_at,omitempty"`
	RevokedAt *time.Time `json:"revoked_at,omitempty"`
	// LastUsedAt is exact to a minute or so.
	LastUsedAt *time.Time `json:"last_used_at,omitempty"`
}

// NewKey is a key that was just made.
type NewKey struct {
	Key Key `json:"key"`
	// Secret is the key itself, to be sent as bearer token. It is told this once.
	Secret string `json:"secret"`
}

// KeyList is every key, newest first.
type KeyList struct {
	Keys []Key `json:"keys"`
}
