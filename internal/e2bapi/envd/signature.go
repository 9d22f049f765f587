package envd

import (
	"crypto/sha256"
	"crypto/subtle"
	"encoding/base64"
	"net/http"
	"net/url"
	"strconv"
	"time"
)

// SignatureVersion begins every signature of a URL for /files.
const SignatureVersion = "v1_"

// MatchesSignature reports whether the query of a request for /files is signed with a token, in
// constant time for all tokens of one length. Whether the signature has expired is not checked.
func MatchesSignature(method string, q url.Values, token string) bool {
	op := "read"
	if method == http.MethodPost {
		op = "write"
	}
	text := q.Get("path") + ":" + op + ":" + q.Get("username") + ":" + token
	if exp := q.Get("signature_expiration"); exp != "" {
		text += ":" + exp
	}
	sum := sha256.Sum256([]byte(text))
	want := SignatureVersion + base64.RawStdEncoding.EncodeToString(sum[:])
	return subtle.ConstantTimeCompare([]byte(want), []byte(q.Get("signature"))) == 1
}

// refusal says why a request for /files may not be served, or is empty. The order of the checks and
// the texts are those that clients compare.
func refusal(r *http.Request, q url.Values, sb Sandbox, now time.Time) string {
	switch {
	case sb.Token == "":
		return ""
	case r.Header.Get("X-Access-Token") != "":
		if !showsToken(r, sb) {
			return "the access token is wrong"
		}
		return ""
	case q.Get("signature") == "":
		return "missing signature query parameter"
	case !MatchesSignature(r.Method, q, sb.Token):
		return "invalid signature"
	}
	if exp := q.Get("signature_expiration"); exp != "" {
		until, err := strconv.ParseInt(exp, 10, 64)
		if err != nil || until < now.Unix() {
			return "signature is already expired"
		}
	}
	return ""
}
