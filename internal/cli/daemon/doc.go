// Package daemon has the commands of the daemon: serve, box, its configuration, keys, secrets,
// health, events and the audit log.
package daemon
