// Package ports carries connections between a sandbox and its host: to ports that programs inside
// listen on, and from ports and sockets inside to endpoints of the host.
package ports
