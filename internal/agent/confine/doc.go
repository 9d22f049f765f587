// Package confine keeps programs from the parts of a kernel that they share with the
// host and have no use for: a list of the system calls they may make, and a domain of
// Landlock's. Both are put on one thread, and hold for all that is forked from it.
package confine
