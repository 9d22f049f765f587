package e2bapi

import "strings"

// idPrefix begins core's IDs of sandboxes.
const idPrefix = "sb-"

// idOf returns E2B's ID of a sandbox.
func idOf(ref string) string { return strings.TrimPrefix(ref, idPrefix) }

// refOf returns core's ID of a sandbox. E2B's clients may append "-" and a client ID.
func refOf(id string) (ref string, ok bool) {
	id, _, _ = strings.Cut(id, "-")
	if id == "" || len(id) > 40 {
		return "", false
	}
	for i := range len(id) {
		if c := id[i]; (c < 'a' || c > 'z') && (c < '0' || c > '9') {
			return "", false
		}
	}
	return idPrefix + id, true
}
