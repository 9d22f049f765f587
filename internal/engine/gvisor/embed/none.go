//go:build !cloche_embed

package embed

// packed is nothing: the build has no executable of sandboxes.
func packed() []byte { return nil }
