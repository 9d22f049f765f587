// Package tap makes the device of a network link, in the network namespace of an
// instance, and sets up all that a Link says of it.
package tap
