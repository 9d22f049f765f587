// Package openapi is the contract of the native API.
package openapi

import _ "embed"

//go:embed openapi.yaml
var document []byte

// OpenAPI returns the OpenAPI document. The caller must not change it.
func OpenAPI() []byte { return document }
