package policy

import "github.com/cloche-dev/cloche"

// Verb is one thing that a caller can ask of the core.
type Verb string

// The verbs. Create, Run and Exec have decisions of their own as well.
const (
	VerbCreate     Verb = "create"
	VerbRun        Verb = "run"
	VerbGet        Verb = "get"
	VerbList       Verb = "list"
	VerbRemove     Verb = "remove"
	VerbStop       Verb = "stop"
	VerbKill       Verb = "kill"
	VerbExec       Verb = "exec"
	VerbLogs       Verb = "logs"
	VerbProcesses  Verb = "processes"
	VerbReadFile   Verb = "read_file"
	VerbWriteFile  Verb = "write_file"
	VerbStatFile   Verb = "stat_file"
	VerbListFiles  Verb = "list_files"
	VerbMoveFile   Verb = "move_file"
	VerbRemoveFile Verb = "remove_file"
	VerbTarIn      Verb = "tar_in"
	VerbTarOut     Verb = "tar_out"
	VerbStatus     Verb = "status"
	VerbImages     Verb = "images"
	VerbDoctor     Verb = "doctor"
)

// Authorize says whether caller may use verb on the sandbox that it called ref
// and that belongs to tenant. A foreign sandbox is not found, in the very words
// of NoSandbox, so that nobody learns which names others use.
func Authorize(caller Caller, verb Verb, ref, tenant string) error {
	if caller.Operator || caller.Tenant != "" && caller.Tenant == tenant {
		return nil
	}
	return NoSandbox(ref)
}

// AuthorizeHost says whether caller may use a verb that concerns no sandbox.
// Doctor describes the machine, so it is the operator's alone.
func AuthorizeHost(caller Caller, verb Verb) error {
	if caller.Operator || verb != VerbDoctor {
		return nil
	}
	e := cloche.Errorf(cloche.CodeDenied, "%s describes this machine and is for the operator only", verb)
	e.Rule = "operator_only"
	return e.WithHint("ask over the daemon's unix socket as the user that it runs as")
}

// Sees says whether a list for caller holds sandboxes of tenant.
func Sees(caller Caller, tenant string) bool {
	return Authorize(caller, VerbList, "", tenant) == nil
}

// NoSandbox is the error for a sandbox that does not exist, or not for the
// caller.
func NoSandbox(ref string) *cloche.Error {
	e := cloche.Errorf(cloche.CodeNotFound, "there is no sandbox %s", show(ref))
	return e.WithHint("list shows the ones that exist")
}
