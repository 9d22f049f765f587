//go:build linux

package oci

// HasOwnTables is hasOwnTables.
var HasOwnTables = hasOwnTables
