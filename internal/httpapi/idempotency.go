package httpapi

import (
	"crypto/sha256"
	"encoding/hex"
	"net/http"

	"github.com/cloche-dev/cloche/api"
)

// keyHeader is the header of a request that can be repeated. It has the same meaning as the key in
// a body, and each is the default of the other.
const keyHeader = "Idempotency-Key"

// headerKey returns the key of the request's header, or "". It refuses an invalid key.
func (r request) headerKey() (string, error) {
	given := r.Header.Values(keyHeader)
	switch {
	case len(given) == 0:
		return "", nil
	case len(given) > 1:
		return "", api.Invalid("idempotency_key", "the request has %d headers %s", len(given), keyHeader)
	case !api.ValidIdempotencyKey(given[0]):
		return "", api.Invalid("idempotency_key", "the header %s is not a key", keyHeader).
			WithHint("a key is 1 to %d printable ASCII characters", api.MaxIdempotencyKey)
	}
	return given[0], nil
}

// keyOf sets the key of a body from the header. Two that differ are an error.
func (r request) keyOf(body *string) error {
	key, err := r.headerKey()
	if err != nil || key == "" {
		return err
	}
	if *body != "" && *body != key {
		return api.Invalid("idempotency_key", "the header %s and the field idempotency_key differ", keyHeader).WithHint("send one of them")
	}
	*body = key
	return nil
}

// execIDOf sets the id of a process from the header, where the body has none: a request with
// the id of a process gets that process. A key that is not a valid id stands for its hash.
func (r request) execIDOf(id *string) error {
	key, err := r.headerKey()
	if err != nil || key == "" || *id != "" {
		return err
	}
	*id = key
	if !api.ValidName(key) {
		sum := sha256.Sum256([]byte(key))
		*id = "key-" + hex.EncodeToString(sum[:16])
	}
	return nil
}

// createSandboxStream is createSandbox with an answer of lines.
func (s *Server) createSandboxStream(w http.ResponseWriter, r request) error {
	r.Header.Set("Accept", ndjson)
	return s.createSandbox(w, r)
}
