//go:build linux && !cgo

package guest

const cgoEnabled = false
