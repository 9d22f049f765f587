// Package lifecycle is what engines share whose sandboxes are processes of this host: the steps of
// a create and how they are undone, the records that outlive a daemon, the first message of an
// agent, and the order of pause, recover, sweep and removal. What a sandbox is made of stays in
// each engine.
package lifecycle
