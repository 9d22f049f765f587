package policy

import (
	"slices"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/policy/rules"
)

// Verb is an operation that a caller can request from the core.
type Verb string

// Operations. Create, Run, Exec and Start also have their own decisions.
const (
	VerbCreate Verb = "create"
	VerbRun    Verb = "run"
	VerbGet    Verb = "get"
	VerbList   Verb = "list"
	VerbRemove Verb = "remove"
	// VerbStartSandbox starts a sandbox that has ended.
	VerbStartSandbox Verb = "start"
	VerbStop         Verb = "stop"
	VerbKill         Verb = "kill"
	VerbExec         Verb = "exec"
	VerbLogs         Verb = "logs"
	VerbProcesses    Verb = "processes"
	VerbStart        Verb = "start_process"
	VerbWait         Verb = "wait_process"
	VerbSignal       Verb = "signal_process"
	VerbResize       Verb = "resize_process"
	VerbStdin        Verb = "write_stdin"
	VerbAttach       Verb = "attach"
	VerbPort         Verb = "dial_port"
	// VerbOpenPort, VerbPorts and VerbClosePort are about ports that have a URL.
	VerbOpenPort  Verb = "open_port"
	VerbPorts     Verb = "list_ports"
	VerbClosePort Verb = "close_port"
	VerbHeartbeat Verb = "heartbeat"
	VerbExtend    Verb = "extend"
	VerbPause     Verb = "pause"
	VerbResume    Verb = "resume"
	VerbSuspend   Verb = "suspend"
	VerbFork      Verb = "fork"
	VerbEvents    Verb = "events"
	// VerbRemoveProcess removes one process with its log.
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
	// VerbCreateSkill creates skills from text or from an archive. VerbChangeSkill changes a
	// skill in place.
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
	VerbPackImage    Verb = "pack_image"
	VerbBuildImage   Verb = "build_image"
	VerbCommitImage  Verb = "commit_image"
	VerbExportImage  Verb = "export_image"
	VerbRemoveImage  Verb = "remove_image"
	VerbPruneImages  Verb = "prune_images"

	VerbCreateKey Verb = "create_key"
	VerbListKeys  Verb = "list_keys"
	VerbRevokeKey Verb = "revoke_key"
	VerbExplain   Verb = "explain_policy"

	VerbSecrets Verb = "list_secrets"
	// VerbEgress returns the rules in force in a sandbox, and VerbEgressLog its allowed and
	// refused egress.
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

	// VerbJob runs a job. The others are about existing jobs.
	VerbJob         Verb = "run_job"
	VerbJobs        Verb = "list_jobs"
	VerbGetJob      Verb = "get_job"
	VerbCancelJob   Verb = "cancel_job"
	VerbContinueJob Verb = "continue_job"

	VerbRecordings      Verb = "list_recordings"
	VerbGetRecording    Verb = "get_recording"
	VerbPutRecording    Verb = "put_recording"
	VerbRemoveRecording Verb = "remove_recording"

	// VerbVersion is what every caller can learn about the daemon.
	VerbVersion Verb = "version"

	// VerbErrors returns the newest errors, and VerbGuidance a description of a sandbox for a
	// model.
	VerbErrors   Verb = "list_errors"
	VerbGuidance Verb = "guidance"
	// VerbMetrics is for the operator's monitoring.
	VerbMetrics Verb = "metrics"
	// VerbEditFile changes a part of a file, and thereby reveals whether that part exists.
	VerbEditFile Verb = "edit_file"
)

// Verbs returns every operation.
func Verbs() []Verb {
	return slices.Concat(ObservingVerbs(), []Verb{
		VerbCreate, VerbRun, VerbRemove, VerbStartSandbox, VerbStop, VerbKill, VerbExec, VerbStart, VerbSignal, VerbResize, VerbStdin, VerbAttach,
		VerbPort, VerbOpenPort, VerbClosePort, VerbHeartbeat, VerbExtend, VerbPause, VerbResume, VerbSuspend, VerbFork, VerbRemoveProcess, VerbWriteFile, VerbMoveFile, VerbRemoveFile, VerbTarIn,
		VerbDoctor, VerbCreateWorkspace, VerbRemoveWorkspace, VerbCommit, VerbRollback, VerbSnapshot, VerbRemoveSnapshot,
		VerbPullImage, VerbImportImage, VerbPackImage, VerbBuildImage, VerbCommitImage, VerbRemoveImage, VerbPruneImages, VerbCreateKey, VerbListKeys, VerbRevokeKey,
		VerbVerifyAudit, VerbChangeEgress, VerbAnswer, VerbAddEndpoint, VerbRemoveEndpoint, VerbServeEndpoint,
		VerbJob, VerbCancelJob, VerbContinueJob,
		VerbPutRecording, VerbRemoveRecording,
		VerbCreateSkill, VerbChangeSkill, VerbRemoveSkill,
		VerbEditFile,
	})
}

// ObservingVerbs returns the operations that change nothing.
func ObservingVerbs() []Verb {
	return []Verb{
		VerbGet, VerbList, VerbLogs, VerbProcesses, VerbWait, VerbEvents, VerbReadFile, VerbStatFile, VerbListFiles, VerbTarOut,
		VerbStatus, VerbImages, VerbGetWorkspace, VerbListWorkspaces, VerbDiff, VerbSnapshots, VerbGetSnapshot, VerbInspectImage, VerbExportImage,
		VerbExplain, VerbVersion, VerbReadAudit, VerbAuditUsage, VerbEgress, VerbEgressLog, VerbApprovals, VerbSecrets, VerbEndpoints,
		VerbJobs, VerbGetJob,
		VerbRecordings, VerbGetRecording,
		VerbSkills, VerbGetSkill,
		VerbErrors, VerbGuidance, VerbMetrics, VerbPorts,
	}
}

// operatorOnly reports whether an operation describes the machine or changes what all tenants
// share.
func operatorOnly(v Verb) bool {
	switch v {
	case VerbDoctor, VerbMetrics, VerbImportImage, VerbPackImage, VerbRemoveImage, VerbPruneImages, VerbCreateKey, VerbListKeys, VerbRevokeKey, VerbVerifyAudit:
		return true
	}
	return false
}

// Authorize checks whether the caller can use an operation on a sandbox that it named by ref and
// that belongs to tenant. A sandbox of another tenant is not found, with the same error as
// NoSandbox, so that names of other tenants are not revealed. Authorize checks the profiles of a
// key. AuthorizeVerb checks its verbs, because they apply to the requested operation and not to
// what it leads to.
func Authorize(caller Caller, verb Verb, ref, tenant, profile string) error {
	if !Sees(caller, tenant) {
		return NoSandbox(ref)
	}
	if err := authorizeProfile(caller, profile); err != nil {
		return err
	}
	return nil
}

// AuthorizeHost checks whether the caller can use an operation that is not about a sandbox. Only
// the operator can use operations that describe the machine or change what all tenants share.
func AuthorizeHost(caller Caller, verb Verb) error {
	if caller.Operator || !operatorOnly(verb) {
		return nil
	}
	e := api.Errorf(api.CodeDenied, "%s is for the operator only", verb)
	e.Rule = "operator_only"
	return e.WithHint("ask over the daemon's unix socket as the user that it runs as")
}

// Sees reports whether the caller can see anything of tenant.
func Sees(caller Caller, tenant string) bool {
	return caller.Operator || caller.Tenant != "" && caller.Tenant == tenant
}

// SeesSandbox reports whether the caller can see a sandbox in lists, by its tenant and profile.
func SeesSandbox(caller Caller, tenant, profile string) bool {
	return Sees(caller, tenant) && caller.Scope.permitsProfile(profile)
}

// NoSandbox is the error for a sandbox that does not exist, or not for the
// caller.
func NoSandbox(ref string) *api.Error {
	e := api.Errorf(api.CodeNotFound, "there is no sandbox %s", rules.Quote(ref))
	return e.WithHint("cloche ls lists the ones that exist")
}
