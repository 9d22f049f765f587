package httpapi

import (
	"net/http"
	"strings"

	"github.com/cloche-dev/cloche/internal/core"
)

// route is one path of the API with one method.
type route struct {
	method, path string
	// verb is what it asks: every request is admitted for it before it is served.
	verb core.Verb
	// pace is its deadline.
	pace  pace
	serve handler
}

// oldRoutes returns the routes of jobs below their deprecated path. Their answers have the old
// name too. They are not in the contract, which describes one name.
func oldRoutes(routes []route) []route {
	var old []route
	for _, r := range routes {
		rest, ok := strings.CutPrefix(r.path, "/v1/jobs")
		if !ok {
			continue
		}
		serve := r.serve
		r.path = "/v1/programs" + rest
		r.serve = func(w http.ResponseWriter, q request) error {
			q.oldJobs = true
			return serve(w, q)
		}
		old = append(old, r)
	}
	return old
}

// ofProbes is the verb of what is served to callers who are not named.
const ofProbes core.Verb = ""

// probeRoutes are for what watches the daemon, such as a kubelet: they ask for no token
// and tell nothing of tenants.
func (s *Server) probeRoutes() []route {
	return []route{
		{http.MethodGet, "/healthz", ofProbes, paceCall, s.healthz},
		{http.MethodGet, "/readyz", ofProbes, paceCall, s.readyz},
	}
}

// routes is the whole API but the probes. A test holds it against the contract.
func (s *Server) routes() []route {
	return []route{
		{http.MethodPost, "/v1/sandboxes", "create", paceWork, s.createSandbox},
		{http.MethodPost, "/v1/sandboxes/stream", "create", paceWork, s.createSandboxStream},
		{http.MethodGet, "/v1/sandboxes", "list", paceCall, s.listSandboxes},
		{http.MethodDelete, "/v1/sandboxes", "remove", paceChange, s.removeKeyed},
		{http.MethodPost, "/v1/batch/create", "create", paceWork, s.createMany},
		{http.MethodPost, "/v1/batch/status", "get", paceCall, s.statusMany},
		{http.MethodPost, "/v1/batch/remove", "remove", paceWork, s.removeMany},
		{http.MethodGet, "/v1/sandboxes/{ref}", "get", paceCall, s.getSandbox},
		{http.MethodDelete, "/v1/sandboxes/{ref}", "remove", paceChange, s.removeSandbox},
		{http.MethodGet, "/v1/sandboxes/{ref}/stats", "get", paceCall, s.stats},
		{http.MethodPost, "/v1/sandboxes/{ref}/stop", "stop", paceChange, s.stopSandbox},
		{http.MethodPost, "/v1/sandboxes/{ref}/kill", "kill", paceChange, s.killSandbox},
		{http.MethodPost, "/v1/sandboxes/{ref}/exec", "exec", paceWait, s.exec},
		{http.MethodGet, "/v1/sandboxes/{ref}/exec/stream", "exec", paceWait, s.execStream},
		{http.MethodPost, "/v1/sandboxes/{ref}/heartbeat", "heartbeat", paceCall, s.heartbeat},
		{http.MethodPost, "/v1/sandboxes/{ref}/extend", "extend", paceCall, s.extend},
		{http.MethodPost, "/v1/sandboxes/{ref}/pause", "pause", paceChange, s.pause},
		{http.MethodPost, "/v1/sandboxes/{ref}/resume", "resume", paceChange, s.resume},
		{http.MethodPost, "/v1/sandboxes/{ref}/processes", "start_process", paceCall, s.startProcess},
		{http.MethodGet, "/v1/sandboxes/{ref}/processes", "processes", paceCall, s.processes},
		{http.MethodGet, "/v1/sandboxes/{ref}/processes/{id}", "processes", paceCall, s.getProcess},
		{http.MethodDelete, "/v1/sandboxes/{ref}/processes/{id}", "remove_process", paceChange, s.removeProcess},
		{http.MethodPost, "/v1/sandboxes/{ref}/processes/{id}/wait", "wait_process", paceWait, s.waitProcess},
		{http.MethodPost, "/v1/sandboxes/{ref}/processes/{id}/signal", "signal_process", paceCall, s.signalProcess},
		{http.MethodPost, "/v1/sandboxes/{ref}/processes/{id}/resize", "resize_process", paceCall, s.resizeProcess},
		{http.MethodPost, "/v1/sandboxes/{ref}/processes/{id}/stdin", "write_stdin", paceWait, s.writeStdin},
		{http.MethodGet, "/v1/sandboxes/{ref}/processes/{id}/attach", "attach", paceWait, s.attach},
		{http.MethodGet, "/v1/sandboxes/{ref}/ports/{port}", "dial_port", paceWait, s.port},
		{http.MethodGet, "/v1/sandboxes/{ref}/endpoints", "endpoints", paceCall, s.endpoints},
		{http.MethodPost, "/v1/sandboxes/{ref}/endpoints", "add_endpoint", paceCall, s.addEndpoint},
		{http.MethodGet, "/v1/sandboxes/{ref}/endpoints/{name}", "endpoints", paceCall, s.endpoint},
		{http.MethodPut, "/v1/sandboxes/{ref}/endpoints/{name}", "add_endpoint", paceCall, s.putEndpoint},
		{http.MethodDelete, "/v1/sandboxes/{ref}/endpoints/{name}", "remove_endpoint", paceChange, s.removeEndpoint},
		{http.MethodGet, "/v1/sandboxes/{ref}/endpoints/{name}/events", "events", paceWait, s.endpointEvents},
		{http.MethodGet, "/v1/sandboxes/{ref}/endpoints/{name}/serve", "serve_endpoint", paceWait, s.serveEndpoint},
		{http.MethodGet, "/v1/sandboxes/{ref}/logs", "logs", paceWait, s.logs},
		{http.MethodGet, "/v1/sandboxes/{ref}/files", "read_file", paceTransfer, s.readFile},
		{http.MethodPut, "/v1/sandboxes/{ref}/files", "write_file", paceTransfer, s.writeFile},
		{http.MethodDelete, "/v1/sandboxes/{ref}/files", "remove_file", paceCall, s.removeFile},
		{http.MethodGet, "/v1/sandboxes/{ref}/files/stat", "stat_file", paceCall, s.statFile},
		{http.MethodGet, "/v1/sandboxes/{ref}/files/list", "list_files", paceCall, s.listFiles},
		{http.MethodPost, "/v1/sandboxes/{ref}/files/move", "move_file", paceCall, s.moveFile},
		{http.MethodPost, "/v1/sandboxes/{ref}/files/mkdir", "write_file", paceCall, s.makeDir},
		{http.MethodPost, "/v1/sandboxes/{ref}/tools/read", "read_file", paceCall, tool(s, s.core.ReadText)},
		{http.MethodPost, "/v1/sandboxes/{ref}/tools/write", "write_file", paceCall, tool(s, s.core.WriteText)},
		{http.MethodPost, "/v1/sandboxes/{ref}/tools/edit", "edit_file", paceCall, tool(s, s.core.EditText)},
		{http.MethodPost, "/v1/sandboxes/{ref}/tools/glob", "list_files", paceCall, tool(s, s.glob)},
		{http.MethodPost, "/v1/sandboxes/{ref}/tools/grep", "read_file", paceCall, tool(s, s.grep)},
		{http.MethodGet, "/v1/sandboxes/{ref}/tar", "tar_out", paceTransfer, s.tarOut},
		{http.MethodPut, "/v1/sandboxes/{ref}/tar", "tar_in", paceTransfer, s.tarIn},
		{http.MethodPost, "/v1/run", "run", paceWait, s.run},
		{http.MethodGet, "/v1/run/stream", "run", paceWait, s.runStream},
		{http.MethodPost, "/v1/jobs", "run_job", paceWait, s.runJob},
		{http.MethodGet, "/v1/jobs", "list_jobs", paceCall, s.jobs},
		{http.MethodGet, "/v1/jobs/{job}", "get_job", paceWait, s.getJob},
		{http.MethodDelete, "/v1/jobs/{job}", "cancel_job", paceChange, s.cancelJob},
		{http.MethodPost, "/v1/jobs/{job}/continue", "continue_job", paceCall, s.continueJob},
		{http.MethodGet, "/v1/hold", "create", paceWait, s.hold},
		{http.MethodGet, "/v1/events", "events", paceWait, s.events},
		{http.MethodGet, "/v1/images", "images", paceCall, s.images},
		{http.MethodDelete, "/v1/images", "remove_image", paceCall, s.removeImage},
		{http.MethodGet, "/v1/images/inspect", "inspect_image", paceCall, s.inspectImage},
		{http.MethodPost, "/v1/images/pull", "pull_image", paceWork, s.pullImage},
		{http.MethodPost, "/v1/images/import", "import_image", paceTransfer, s.importImage},
		{http.MethodPost, "/v1/images/build", "build_image", paceWork, s.buildImage},
		{http.MethodPost, "/v1/images/prune", "prune_images", paceWork, s.pruneImages},
		{http.MethodPost, "/v1/workspaces", "create_workspace", paceWork, s.createWorkspace},
		{http.MethodGet, "/v1/workspaces", "list_workspaces", paceCall, s.workspaces},
		{http.MethodGet, "/v1/workspaces/{name}", "get_workspace", paceCall, s.getWorkspace},
		{http.MethodDelete, "/v1/workspaces/{name}", "remove_workspace", paceWork, s.removeWorkspace},
		{http.MethodGet, "/v1/sandboxes/{ref}/diff", "diff", paceWork, s.diff},
		{http.MethodPost, "/v1/sandboxes/{ref}/commit", "commit_workspace", paceWork, s.commitWorkspace},
		{http.MethodPost, "/v1/sandboxes/{ref}/rollback", "rollback_workspace", paceWork, s.rollbackWorkspace},
		{http.MethodPost, "/v1/sandboxes/{ref}/snapshots", "create_snapshot", paceWork, s.createSnapshot},
		{http.MethodGet, "/v1/snapshots", "list_snapshots", paceCall, s.snapshots},
		{http.MethodGet, "/v1/snapshots/{ref}", "get_snapshot", paceCall, s.getSnapshot},
		{http.MethodDelete, "/v1/snapshots/{ref}", "remove_snapshot", paceWork, s.removeSnapshot},
		{http.MethodGet, "/v1/skills", "list_skills", paceCall, s.skills},
		{http.MethodPost, "/v1/skills", "create_skill", paceCall, s.createSkill},
		{http.MethodPost, "/v1/skills/preview", "create_skill", paceTransfer, s.previewSkills},
		{http.MethodPost, "/v1/skills/install", "create_skill", paceTransfer, s.installSkills},
		{http.MethodGet, "/v1/skills/{name}", "get_skill", paceCall, s.getSkill},
		{http.MethodPatch, "/v1/skills/{name}", "change_skill", paceCall, s.updateSkill},
		{http.MethodDelete, "/v1/skills/{name}", "remove_skill", paceCall, s.removeSkill},
		{http.MethodGet, "/v1/skills/{name}/files", "get_skill", paceCall, s.skillFiles},
		{http.MethodGet, "/v1/skills/{name}/data", "get_skill", paceCall, s.readSkillFile},
		{http.MethodPut, "/v1/skills/{name}/data", "change_skill", paceCall, s.writeSkillFile},
		{http.MethodDelete, "/v1/skills/{name}/data", "change_skill", paceCall, s.removeSkillFile},
		{http.MethodGet, "/v1/recordings", "list_recordings", paceCall, s.recordings},
		{http.MethodGet, "/v1/recordings/{name}", "get_recording", paceCall, s.getRecording},
		{http.MethodGet, "/v1/recordings/{name}/data", "get_recording", paceTransfer, s.readRecording},
		{http.MethodPut, "/v1/recordings/{name}/data", "put_recording", paceTransfer, s.putRecording},
		{http.MethodDelete, "/v1/recordings/{name}", "remove_recording", paceCall, s.removeRecording},
		{http.MethodGet, "/v1/sandboxes/{ref}/egress", "egress", paceCall, s.egress},
		{http.MethodPatch, "/v1/sandboxes/{ref}/egress", "change_egress", paceCall, s.changeEgress},
		{http.MethodPut, "/v1/sandboxes/{ref}/egress", "change_egress", paceCall, s.replaceEgress},
		{http.MethodGet, "/v1/sandboxes/{ref}/egress/log", "egress_log", paceWait, s.egressLog},
		{http.MethodGet, "/v1/approvals", "list_approvals", paceCall, s.approvals},
		{http.MethodPost, "/v1/approvals/{approval}", "answer_approval", paceCall, s.answerApproval},
		{http.MethodPost, "/v1/keys", "create_key", paceCall, s.createKey},
		{http.MethodGet, "/v1/keys", "list_keys", paceCall, s.keys},
		{http.MethodDelete, "/v1/keys/{key}", "revoke_key", paceCall, s.revokeKey},
		{http.MethodGet, "/v1/secrets", "list_secrets", paceCall, s.secrets},
		{http.MethodPost, "/v1/policy/explain", "explain_policy", paceCall, s.explainPolicy},
		{http.MethodGet, "/v1/audit", "read_audit", paceWait, s.audit},
		{http.MethodGet, "/v1/audit/verify", "verify_audit", paceWork, s.verifyAudit},
		{http.MethodGet, "/v1/audit/usage", "audit_usage", paceWork, s.auditUsage},
		{http.MethodGet, "/v1/status", "status", paceCall, s.status},
		{http.MethodGet, "/v1/errors", "list_errors", paceCall, s.errors},
		{http.MethodGet, "/v1/guidance", "guidance", paceCall, s.guidance},
		{http.MethodGet, "/v1/doctor", "doctor", paceCall, s.doctor},
		{http.MethodGet, "/v1/metrics", "metrics", paceCall, s.metrics},
		{http.MethodGet, "/v1/info", "version", paceCall, s.info},
		{http.MethodPost, "/v1/names/resolve", "get", paceCall, s.resolveName},
		{http.MethodGet, "/v1/version", "version", paceCall, s.versionInfo},
		{http.MethodGet, "/v1/openapi.yaml", "version", paceCall, s.openapi},
	}
}
