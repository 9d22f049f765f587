// Package process has the commands of processes in a sandbox: exec, shell, start, attach, logs,
// signals and port forwarding.
package process
