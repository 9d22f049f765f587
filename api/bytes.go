package api

import (
	"encoding/json"
	"fmt"
	"unicode/utf8"
)

// Bytes are arbitrary bytes. In JSON, valid UTF-8 is a plain string, which people can read, and all
// other content is {"base64": "…"}, so nothing is lost.
type Bytes []byte

type base64Bytes struct {
	Base64 []byte `json:"base64"`
}

// MarshalJSON implements json.Marshaler.
func (b Bytes) MarshalJSON() ([]byte, error) {
	if utf8.Valid(b) {
		return json.Marshal(string(b))
	}
	return json.Marshal(base64Bytes{b})
}

// UnmarshalJSON implements json.Unmarshaler.
func (b *Bytes) UnmarshalJSON(data []byte) error {
	var s string
	if err := json.Unmarshal(data, &s); err == nil {
		*b = Bytes(s)
		return nil
	}
	var w base64Bytes
	if err := json.Unmarshal(data, &w); err != nil {
		return fmt.Errorf(`want a string or {"base64": "…"}: %w`, err)
	}
	*b = w.Base64
	return nil
}
