//go:build linux && !cgo && cloche_embed

package main

// playSandbox does nothing: the processes of sandboxes on gVisor have an executable of their own.
func playSandbox() {}
