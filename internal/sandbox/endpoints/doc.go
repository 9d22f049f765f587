// Package endpoints opens the endpoints of sandboxes and keeps them open: a [Table] holds those of
// one sandbox, a [Service] what all of them share.
package endpoints
