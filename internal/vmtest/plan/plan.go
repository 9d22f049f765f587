// Package plan is what a virtual machine of a test is told by who starts it.
package plan

const (
	// Name is the file that holds the Plan, at the top of the first root.
	Name = "plan.json"
	// Ended stands on the console before the status with which the command ended.
	Ended = "\x1ethe command ended with "
)

// Plan is what the machine does.
type Plan struct {
	// Modules are files of the first root, in the order of loading.
	Modules []string
	// Command is run with Env.
	Command, Env []string
}
