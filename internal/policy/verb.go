package policy

import (
	"slices"

	"github.com/cloche-dev/cloche/api"
)

// Verb is one thing that a caller can ask of the core.
type Verb string

// The verbs. Create, Run, Exec and Start have decisions of their own as well.
const (
	VerbCreate    Verb = "create"
	VerbRun       Verb = "run"
	VerbGet       Verb = "get"
	VerbList      Verb = "list"
	VerbRemove    Verb = "remove"
	VerbStop      Verb = "stop"
	VerbKill      Verb = "kill"
	VerbExec      Verb = "exec"
	VerbLogs      Verb = "logs"
	VerbProcesses Verb = "processes"
	VerbStart     Verb = "start_process"
	VerbWait      Verb = "wait_process"
	VerbSignal    Verb = "signal_process"
	VerbResize    Verb = "resize_process"
	VerbStdin     Verb = "write_stdin"
	VerbAttach    Verb = "attach"
	VerbPort      Verb = "dial_port"
	VerbHeartbeat Verb = "heartbeat"
	VerbExtend    Verb = "extend"
	VerbPause     Verb = "pause"
	VerbResume    Verb = "resume"
	VerbEvents    Verb = "events"
	// VerbRemoveProcess takes one process away with its log.
	VerbRemoveProcess Verb = "remove_process"

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

	VerbCreateWorkspace Verb = "create_workspace"
	VerbGetWorkspace    Verb = "get_workspace"
	VerbListWorkspaces  Verb = "list_workspaces"
	VerbRemoveWorkspace Verb = "remove_workspace"

	VerbSkills   Verb = "list_skills"
	VerbGetSkill Verb = "get_skill"
	// VerbCreateSkill makes skills, of text or of an archive; VerbChangeSkill changes
	// one in its place.
	VerbCreateSkill Verb = "create_skill"
	VerbChangeSkill Verb = "change_skill"
	VerbRemoveSkill Verb = "remove_skill"

	VerbDiff           Verb = "diff"
	VerbCommit         Verb = "commit_workspace"
	VerbRollback       Verb = "rollback_workspace"
	VerbSnapshot       Verb = "create_snapshot"
	VerbSnapshots      Verb = "list_snapshots"
	VerbGetSnapshot    Verb = "get_snapshot"
	VerbRemoveSnapshot Verb = "remove_snapshot"

	VerbInspectImage Verb = "inspect_image"
	VerbPullImage    Verb = "pull_image"
	VerbImportImage  Verb = "import_image"
	VerbBuildImage   Verb = "build_image"
	VerbRemoveImage  Verb = "remove_image"
	VerbPruneImages  Verb = "prune_images"

	VerbCreateKey Verb = "create_key"
	VerbListKeys  Verb = "list_keys"
	VerbRevokeKey Verb = "revoke_key"
	VerbExplain   Verb = "explain_policy"

	VerbSecrets Verb = "list_secrets"
	// VerbEgress tells the rules that are in force in a sandbox, VerbEgressLog what left
	// it and what did not.
	VerbEgress       Verb = "egress"
	VerbEgressLog    Verb = "egress_log"
	VerbChangeEgress Verb = "change_egress"
	VerbApprovals    Verb = "list_approvals"
	VerbAnswer       Verb = "answer_approval"

	VerbReadAudit   Verb = "read_audit"
	VerbVerifyAudit Verb = "verify_audit"
	VerbAuditUsage  Verb = "audit_usage"

	VerbEndpoints      Verb = "endpoints"
	VerbAddEndpoint    Verb = "add_endpoint"
	VerbRemoveEndpoint Verb = "remove_endpoint"
	// VerbServeEndpoint serves an endpoint from a client.
	VerbServeEndpoint Verb = "serve_endpoint"

	// VerbProgram runs one; the others are about those that there are.
	VerbProgram         Verb = "run_program"
	VerbPrograms        Verb = "list_programs"
	VerbGetProgram      Verb = "get_program"
	VerbCancelProgram   Verb = "cancel_program"
	VerbContinueProgram Verb = "continue_program"

	VerbRecordings      Verb = "list_recordings"
	VerbGetRecording    Verb = "get_recording"
	VerbPutRecording    Verb = "put_recording"
	VerbRemoveRecording Verb = "remove_recording"

	// VerbVersion is what every caller may know of the daemon.
	VerbVersion Verb = "version"

	// VerbErrors tells the newest errors, VerbGuidance what to tell a model of its
	// sandbox.
	VerbErrors   Verb = "list_errors"
	VerbGuidance Verb = "guidance"
	// VerbMetrics is what the operator's monitoring asks for.
	VerbMetrics Verb = "metrics"
	// VerbEditFile changes a part of a file, of which it tells whether it is there.
	VerbEditFile Verb = "edit_file"
)

// Verbs lists every verb.
func Verbs() []Verb {
	return slices.Concat(ObservingVerbs(), []Verb{
		VerbCreate, VerbRun, VerbRemove, VerbStop, VerbKill, VerbExec, VerbStart, VerbSignal, VerbResize, VerbStdin, VerbAttach,
		VerbPort, VerbHeartbeat, VerbExtend, VerbPause, VerbResume, VerbRemoveProcess, VerbWriteFile, VerbMoveFile, VerbRemoveFile, VerbTarIn,
		VerbDoctor, VerbCreateWorkspace, VerbRemoveWorkspace, VerbCommit, VerbRollback, VerbSnapshot, VerbRemoveSnapshot,
		VerbPullImage, VerbImportImage, VerbBuildImage, VerbRemoveImage, VerbPruneImages, VerbCreateKey, VerbListKeys, VerbRevokeKey,
		VerbVerifyAudit, VerbChangeEgress, VerbAnswer, VerbAddEndpoint, VerbRemoveEndpoint, VerbServeEndpoint,
		VerbProgram, VerbCancelProgram, VerbContinueProgram,
		VerbPutRecording, VerbRemoveRecording,
		VerbCreateSkill, VerbChangeSkill, VerbRemoveSkill,
		VerbEditFile,
	})
}

// ObservingVerbs are those that only look: nothing is other than before.
func ObservingVerbs() []Verb {
	return []Verb{
		VerbGet, VerbList, VerbLogs, VerbProcesses, VerbWait, VerbEvents, VerbReadFile, VerbStatFile, VerbListFiles, VerbTarOut,
		VerbStatus, VerbImages, VerbGetWorkspace, VerbListWorkspaces, VerbDiff, VerbSnapshots, VerbGetSnapshot, VerbInspectImage,
		VerbExplain, VerbVersion, VerbReadAudit, VerbAuditUsage, VerbEgress, VerbEgressLog, VerbApprovals, VerbSecrets, VerbEndpoints,
		VerbPrograms, VerbGetProgram,
		VerbRecordings, VerbGetRecording,
		VerbSkills, VerbGetSkill,
		VerbErrors, VerbGuidance, VerbMetrics,
	}
}

// operatorOnly verbs describe the machine or change what all tenants have.
func operatorOnly(v Verb) bool {
	switch v {
	case VerbDoctor, VerbMetrics, VerbImportImage, VerbBuildImage, VerbRemoveImage, VerbPruneImages, VerbCreateKey, VerbListKeys, VerbRevokeKey, VerbVerifyAudit:
		return true
	}
	return false
}

// Authorize says whether caller may use verb on the sandbox that it called ref
// and that belongs to tenant. A foreign sandbox is not found, in the very words
// of NoSandbox, so that nobody learns which names others use. A key is kept to its
// profiles; to its verbs it is by AuthorizeVerb, for what a verb leads to is not
// asked for.
func Authorize(caller Caller, verb Verb, ref, tenant, profile string) error {
	if !Sees(caller, tenant) {
		return NoSandbox(ref)
	}
	if err := authorizeProfile(caller, profile); err != nil {
		return err
	}
	return nil
}

// AuthorizeHost says whether caller may use a verb that concerns no sandbox. What
// describes the machine or changes what all tenants have is the operator's alone.
func AuthorizeHost(caller Caller, verb Verb) error {
	if caller.Operator || !operatorOnly(verb) {
		return nil
	}
	e := api.Errorf(api.CodeDenied, "%s is for the operator only", verb)
	e.Rule = "operator_only"
	return e.WithHint("ask over the daemon's unix socket as the user that it runs as")
}

// Sees says whether anything of tenant exists for caller.
func Sees(caller Caller, tenant string) bool {
	return caller.Operator || caller.Tenant != "" && caller.Tenant == tenant
}

// SeesSandbox says whether a list for caller holds a sandbox of tenant that was
// made with a profile.
func SeesSandbox(caller Caller, tenant, profile string) bool {
	return Sees(caller, tenant) && caller.Scope.permitsProfile(profile)
}

// NoSandbox is the error for a sandbox that does not exist, or not for the
// caller.
func NoSandbox(ref string) *api.Error {
	e := api.Errorf(api.CodeNotFound, "there is no sandbox %s", show(ref))
	return e.WithHint("cloche ls lists the ones that exist")
}
