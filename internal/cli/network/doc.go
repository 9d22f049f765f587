// Package network has the commands of what a sandbox reaches: egress rules, endpoints and
// their recordings.
package network
