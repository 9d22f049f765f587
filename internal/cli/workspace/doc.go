// Package workspace has the commands of workspaces, and of snapshots of their files.
package workspace
