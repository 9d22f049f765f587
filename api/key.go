package api

import "time"

// KeySpec describes an API key to create. A key belongs to one tenant and never has operator
// rights.
type KeySpec struct {
	// Tenant owns what callers with the key create, and is the only tenant that they can see.
	Tenant string `json:"tenant"`
	// Name says what the key is for; it need not be unique.
	Name string `json:"name,omitempty"`
	// Verbs are the operations that the key allows. Empty allows everything that a tenant can do.
	// KeyVerbsObserve stands for every operation that changes nothing.
	Verbs []string `json:"verbs,omitempty"`
	// Profiles are the profiles of the sandboxes that the key can create and use. Empty allows
	// all.
	Profiles []string `json:"profiles,omitempty"`
	// ExpiresInMS is how long the key is valid, in milliseconds; 0 is until it is revoked.
	ExpiresInMS int64 `json:"expires_in_ms,omitempty"`
}

// KeyVerbsObserve stands for the operations that only read.
const KeyVerbsObserve = "observe"

// Key is the record of an API key. Only a hash of the key itself is stored.
type Key struct {
	ID     string `json:"id"`
	Tenant string `json:"tenant"`
	Name   string `json:"name,omitempty"`
	// Verbs and Profiles limit what the key allows. Empty is no limit.
	Verbs     []string   `json:"verbs,omitempty"`
	Profiles  []string   `json:"profiles,omitempty"`
	CreatedAt time.Time  `json:"created_at"`
	ExpiresAt *time.Time `json:"expires_at,omitempty"`
	RevokedAt *time.Time `json:"revoked_at,omitempty"`
	// LastUsedAt has a resolution of about a minute.
	LastUsedAt *time.Time `json:"last_used_at,omitempty"`
}

// NewKey is a key that was just created.
type NewKey struct {
	Key Key `json:"key"`
	// Secret is the key itself, to be sent as a bearer token. It is returned only once.
	Secret string `json:"secret"`
}

// KeyList lists every key, newest first.
type KeyList struct {
	Keys []Key `json:"keys"`
}
