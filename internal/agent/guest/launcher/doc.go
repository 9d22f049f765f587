// Package launcher forks processes ahead of their start. A [Launcher] waits in memory of its own
// until the agent tells it what to execute, so that a start costs one execve.
package launcher
