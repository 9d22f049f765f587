// Package hostrootfs is what engines share whose sandboxes run on the host's own
// kernel: images that the kernel mounts, a range of ids for each sandbox, and which files of the host
// are covered in /proc and /sys. It isolates nothing by itself.
package hostrootfs
