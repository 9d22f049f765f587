// Package admission bounds how many sandboxes are created at once, and queues the others fairly by tenant.
package admission
