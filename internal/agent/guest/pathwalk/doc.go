// Package pathwalk opens the paths of a sandbox for the agent. A path is followed name by name
// through open directories, so that a process inside cannot lead the agent to another file. A
// [Root] bounds where a path may lead; [Restrictions] are the rules on paths of mounts.
package pathwalk
