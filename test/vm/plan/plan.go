// Package plan is what a virtual machine of a test is told by who starts it.
package plan

const (
	// Name is the file that holds the Plan, at the top of the first root.
	Name = "plan.json"
	// Ended stands on the console before the status with which a command ended.
	Ended = "\x1ethe command ended with "
)

// Plan is what the machine does.
type Plan struct {
	// Modules are files of the first root, in the order of loading.
	Modules []string
	// Commands are run one after the other.
	Commands []Command
}

// Place is where among the machine's cgroups a command runs. All of them are of version 2.
type Place string

const (
	// Top is the group of a machine's first processes, with the hierarchy as the kernel
	// made it.
	Top Place = ""
	// Delegated is the group of a normal user's session, below a group that is the user's: what
	// systemd makes of Delegate=yes. The command runs as that user.
	Delegated Place = "delegated"
	// Container is the top of a cgroup namespace of its own.
	Container Place = "container"
)

// UID is the normal user, and its group.
const UID = 1000

// Command is run in the directory /tmp.
type Command struct {
	// Name is what a test calls it.
	Name string
	// Argv is run with Env.
	Argv, Env []string
	// Place is where, and Without the controllers that are not handed down to there.
	Place   Place
	Without []string
	// Reboot: the machine is switched off before the command, with what still runs in it, and on again. The disk is kept.
	Reboot bool
}
