package httpapi

import (
	"net/http"

	"github.com/cloche-dev/cloche/internal/core"
)

// route is one path of the API with one method.
type route struct {
	method, path string
	// verb is what it asks: every request is admitted for it before it is served.
	verb  core.Verb
	serve handler
}

// ofProbes is the verb of what is served to callers who are not named.
const ofProbes core.Verb = ""

// probeRoutes are for what watches the daemon, such as a kubelet: they ask for no token
// and tell nothing of tenants.
func (s *Server) probeRoutes() []route {
	return []route{
		{http.MethodGet, "/healthz", ofProbes, s.healthz},
		{http.MethodGet, "/readyz", ofProbes, s.readyz},
	}
}

// routes is the whole API but the probes. A test holds it against the contract.
func (s *Server) routes() []route {
	return []route{
		{http.MethodPost, "/v1/sandboxes", "create", s.createSandbox},
		{http.MethodPost, "/v1/sandboxes/stream", "create", s.createSandboxStream},
		{http.MethodGet, "/v1/sandboxes", "list", s.listSandboxes},
		{http.MethodDelete, "/v1/sandboxes", "remove", s.removeKeyed},
		{http.MethodPost, "/v1/batch/create", "create", s.createMany},
		{http.MethodPost, "/v1/batch/status", "get", s.statusMany},
		{http.MethodPost, "/v1/batch/remove", "remove", s.removeMany},
		{http.MethodGet, "/v1/sandboxes/{ref}", "get", s.getSandbox},
		{http.MethodDelete, "/v1/sandboxes/{ref}", "remove", s.removeSandbox},
		{http.MethodGet, "/v1/sandboxes/{ref}/stats", "get", s.stats},
		{http.MethodPost, "/v1/sandboxes/{ref}/stop", "stop", s.stopSandbox},
		{http.MethodPost, "/v1/sandboxes/{ref}/kill", "kill", s.killSandbox},
		{http.MethodPost, "/v1/sandboxes/{ref}/exec", "exec", s.exec},
		{http.MethodGet, "/v1/sandboxes/{ref}/exec/stream", "exec", s.execStream},
		{http.MethodPost, "/v1/sandboxes/{ref}/heartbeat", "heartbeat", s.heartbeat},
		{http.MethodPost, "/v1/sandboxes/{ref}/extend", "extend", s.extend},
		{http.MethodPost, "/v1/sandboxes/{ref}/pause", "pause", s.pause},
		{http.MethodPost, "/v1/sandboxes/{ref}/resume", "resume", s.resume},
		{http.MethodPost, "/v1/sandboxes/{ref}/processes", "start_process", s.startProcess},
		{http.MethodGet, "/v1/sandboxes/{ref}/processes", "processes", s.processes},
		{http.MethodGet, "/v1/sandboxes/{ref}/processes/{id}", "processes", s.getProcess},
		{http.MethodDelete, "/v1/sandboxes/{ref}/processes/{id}", "remove_process", s.removeProcess},
		{http.MethodPost, "/v1/sandboxes/{ref}/processes/{id}/wait", "wait_process", s.waitProcess},
		{http.MethodPost, "/v1/sandboxes/{ref}/processes/{id}/signal", "signal_process", s.signalProcess},
		{http.MethodPost, "/v1/sandboxes/{ref}/processes/{id}/resize", "resize_process", s.resizeProcess},
		{http.MethodPost, "/v1/sandboxes/{ref}/processes/{id}/stdin", "write_stdin", s.writeStdin},
		{http.MethodGet, "/v1/sandboxes/{ref}/processes/{id}/attach", "attach", s.attach},
		{http.MethodGet, "/v1/sandboxes/{ref}/ports/{port}", "dial_port", s.port},
		{http.MethodGet, "/v1/sandboxes/{ref}/endpoints", "endpoints", s.endpoints},
		{http.MethodPost, "/v1/sandboxes/{ref}/endpoints", "add_endpoint", s.addEndpoint},
		{http.MethodGet, "/v1/sandboxes/{ref}/endpoints/{name}", "endpoints", s.endpoint},
		{http.MethodPut, "/v1/sandboxes/{ref}/endpoints/{name}", "add_endpoint", s.putEndpoint},
		{http.MethodDelete, "/v1/sandboxes/{ref}/endpoints/{name}", "remove_endpoint", s.removeEndpoint},
		{http.MethodGet, "/v1/sandboxes/{ref}/endpoints/{name}/events", "events", s.endpointEvents},
		{http.MethodGet, "/v1/sandboxes/{ref}/endpoints/{name}/serve", "serve_endpoint", s.serveEndpoint},
		{http.MethodGet, "/v1/sandboxes/{ref}/logs", "logs", s.logs},
		{http.MethodGet, "/v1/sandboxes/{ref}/files", "read_file", s.readFile},
		{http.MethodPut, "/v1/sandboxes/{ref}/files", "write_file", s.writeFile},
		{http.MethodDelete, "/v1/sandboxes/{ref}/files", "remove_file", s.removeFile},
		{http.MethodGet, "/v1/sandboxes/{ref}/files/stat", "stat_file", s.statFile},
		{http.MethodGet, "/v1/sandboxes/{ref}/files/list", "list_files", s.listFiles},
		{http.MethodPost, "/v1/sandboxes/{ref}/files/move", "move_file", s.moveFile},
		{http.MethodPost, "/v1/sandboxes/{ref}/files/mkdir", "write_file", s.makeDir},
		{http.MethodPost, "/v1/sandboxes/{ref}/tools/read", "read_file", tool(s, s.core.ReadText)},
		{http.MethodPost, "/v1/sandboxes/{ref}/tools/write", "write_file", tool(s, s.core.WriteText)},
		{http.MethodPost, "/v1/sandboxes/{ref}/tools/edit", "edit_file", tool(s, s.core.EditText)},
		{http.MethodPost, "/v1/sandboxes/{ref}/tools/glob", "list_files", tool(s, s.glob)},
		{http.MethodPost, "/v1/sandboxes/{ref}/tools/grep", "read_file", tool(s, s.grep)},
		{http.MethodGet, "/v1/sandboxes/{ref}/tar", "tar_out", s.tarOut},
		{http.MethodPut, "/v1/sandboxes/{ref}/tar", "tar_in", s.tarIn},
		{http.MethodPost, "/v1/run", "run", s.run},
		{http.MethodGet, "/v1/run/stream", "run", s.runStream},
		{http.MethodPost, "/v1/programs", "run_program", s.runProgram},
		{http.MethodGet, "/v1/programs", "list_programs", s.programs},
		{http.MethodGet, "/v1/programs/{program}", "get_program", s.getProgram},
		{http.MethodDelete, "/v1/programs/{program}", "cancel_program", s.cancelProgram},
		{http.MethodPost, "/v1/programs/{program}/continue", "continue_program", s.continueProgram},
		{http.MethodGet, "/v1/hold", "create", s.hold},
		{http.MethodGet, "/v1/events", "events", s.events},
		{http.MethodGet, "/v1/images", "images", s.images},
		{http.MethodDelete, "/v1/images", "remove_image", s.removeImage},
		{http.MethodGet, "/v1/images/inspect", "inspect_image", s.inspectImage},
		{http.MethodPost, "/v1/images/pull", "pull_image", s.pullImage},
		{http.MethodPost, "/v1/images/import", "import_image", s.importImage},
		{http.MethodPost, "/v1/images/build", "build_image", s.buildImage},
		{http.MethodPost, "/v1/images/prune", "prune_images", s.pruneImages},
		{http.MethodPost, "/v1/workspaces", "create_workspace", s.createWorkspace},
		{http.MethodGet, "/v1/workspaces", "list_workspaces", s.workspaces},
		{http.MethodGet, "/v1/workspaces/{name}", "get_workspace", s.getWorkspace},
		{http.MethodDelete, "/v1/workspaces/{name}", "remove_workspace", s.removeWorkspace},
		{http.MethodGet, "/v1/sandboxes/{ref}/diff", "diff", s.diff},
		{http.MethodPost, "/v1/sandboxes/{ref}/commit", "commit_workspace", s.commitWorkspace},
		{http.MethodPost, "/v1/sandboxes/{ref}/rollback", "rollback_workspace", s.rollbackWorkspace},
		{http.MethodPost, "/v1/sandboxes/{ref}/snapshots", "create_snapshot", s.createSnapshot},
		{http.MethodGet, "/v1/snapshots", "list_snapshots", s.snapshots},
		{http.MethodGet, "/v1/snapshots/{ref}", "get_snapshot", s.getSnapshot},
		{http.MethodDelete, "/v1/snapshots/{ref}", "remove_snapshot", s.removeSnapshot},
		{http.MethodGet, "/v1/skills", "list_skills", s.skills},
		{http.MethodPost, "/v1/skills", "create_skill", s.createSkill},
		{http.MethodPost, "/v1/skills/preview", "create_skill", s.previewSkills},
		{http.MethodPost, "/v1/skills/install", "create_skill", s.installSkills},
		{http.MethodGet, "/v1/skills/{name}", "get_skill", s.getSkill},
		{http.MethodPatch, "/v1/skills/{name}", "change_skill", s.updateSkill},
		{http.MethodDelete, "/v1/skills/{name}", "remove_skill", s.removeSkill},
		{http.MethodGet, "/v1/skills/{name}/files", "get_skill", s.skillFiles},
		{http.MethodGet, "/v1/skills/{name}/data", "get_skill", s.readSkillFile},
		{http.MethodPut, "/v1/skills/{name}/data", "change_skill", s.writeSkillFile},
		{http.MethodDelete, "/v1/skills/{name}/data", "change_skill", s.removeSkillFile},
		{http.MethodGet, "/v1/recordings", "list_recordings", s.recordings},
		{http.MethodGet, "/v1/recordings/{name}", "get_recording", s.getRecording},
		{http.MethodGet, "/v1/recordings/{name}/data", "get_recording", s.readRecording},
		{http.MethodPut, "/v1/recordings/{name}/data", "put_recording", s.putRecording},
		{http.MethodDelete, "/v1/recordings/{name}", "remove_recording", s.removeRecording},
		{http.MethodGet, "/v1/sandboxes/{ref}/egress", "egress", s.egress},
		{http.MethodPatch, "/v1/sandboxes/{ref}/egress", "change_egress", s.changeEgress},
		{http.MethodPut, "/v1/sandboxes/{ref}/egress", "change_egress", s.replaceEgress},
		{http.MethodGet, "/v1/sandboxes/{ref}/egress/log", "egress_log", s.egressLog},
		{http.MethodGet, "/v1/approvals", "list_approvals", s.approvals},
		{http.MethodPost, "/v1/approvals/{approval}", "answer_approval", s.answerApproval},
		{http.MethodPost, "/v1/keys", "create_key", s.createKey},
		{http.MethodGet, "/v1/keys", "list_keys", s.keys},
		{http.MethodDelete, "/v1/keys/{key}", "revoke_key", s.revokeKey},
		{http.MethodGet, "/v1/secrets", "list_secrets", s.secrets},
		{http.MethodPost, "/v1/policy/explain", "explain_policy", s.explainPolicy},
		{http.MethodGet, "/v1/audit", "read_audit", s.audit},
		{http.MethodGet, "/v1/audit/verify", "verify_audit", s.verifyAudit},
		{http.MethodGet, "/v1/audit/usage", "audit_usage", s.auditUsage},
		{http.MethodGet, "/v1/status", "status", s.status},
		{http.MethodGet, "/v1/errors", "list_errors", s.errors},
		{http.MethodGet, "/v1/guidance", "guidance", s.guidance},
		{http.MethodGet, "/v1/doctor", "doctor", s.doctor},
		{http.MethodGet, "/v1/metrics", "metrics", s.metrics},
		{http.MethodGet, "/v1/info", "version", s.info},
		{http.MethodPost, "/v1/names/resolve", "get", s.resolveName},
		{http.MethodGet, "/v1/version", "version", s.versionInfo},
		{http.MethodGet, "/v1/openapi.yaml", "version", s.openapi},
	}
}
