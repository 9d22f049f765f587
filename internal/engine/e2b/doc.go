// Package e2b is the engine whose sandboxes run at a service with E2B's API: E2B's own, CubeSandbox, or
// another Cloche. It uploads the agent into a sandbox of the service, starts it there and reaches it
// through the service's stream of a process, so the service needs to publish no port. The root
// filesystem is a template of the service. What the service cannot enforce is refused.
package e2b
