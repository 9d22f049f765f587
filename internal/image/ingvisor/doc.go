// Package ingvisor holds the tests of images as root filesystems of gVisor
// sandboxes, apart from package image so that no other test is built with gVisor.
package ingvisor
