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

// routes is the whole API. A test holds it against the contract.
func (s *Server) routes() []route {
	return []route{
		{http.MethodPost, "/v1/sandboxes", "create", s.createSandbox},
		{http.MethodGet, "/v1/sandboxes", "list", s.listSandboxes},
		{http.MethodGet, "/v1/sandboxes/{ref}", "get", s.getSandbox},
		{http.MethodDelete, "/v1/sandboxes/{ref}", "remove", s.removeSandbox},
		{http.MethodPost, "/v1/sandboxes/{ref}/stop", "stop", s.stopSandbox},
		{http.MethodPost, "/v1/sandboxes/{ref}/kill", "kill", s.killSandbox},
		{http.MethodPost, "/v1/sandboxes/{ref}/exec", "exec", s.exec},
		{http.MethodGet, "/v1/sandboxes/{ref}/exec/stream", "exec", s.execStream},
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
		{http.MethodGet, "/v1/sandboxes/{ref}/tar", "tar_out", s.tarOut},
		{http.MethodPut, "/v1/sandboxes/{ref}/tar", "tar_in", s.tarIn},
		{http.MethodPost, "/v1/run", "run", s.run},
		{http.MethodGet, "/v1/run/stream", "run", s.runStream},
		{http.MethodGet, "/v1/events", "events", s.events},
		{http.MethodGet, "/v1/images", "images", s.images},
		{http.MethodDelete, "/v1/images", "remove_image", s.removeImage},
		{http.MethodGet, "/v1/images/inspect", "inspect_image", s.inspectImage},
		{http.MethodPost, "/v1/images/pull", "pull_image", s.pullImage},
		{http.MethodPost, "/v1/images/import", "import_image", s.importImage},
		{http.MethodPost, "/v1/images/build", "build_image", s.buildImage},
		{http.MethodPost, "/v1/images/prune", "prune_images", s.pruneImages},
		{http.MethodGet, "/v1/sandboxes/{ref}/egress", "egress", s.egress},
		{http.MethodPatch, "/v1/sandboxes/{ref}/egress", "change_egress", s.changeEgress},
		{http.MethodPut, "/v1/sandboxes/{ref}/egress", "change_egress", s.replaceEgress},
		{http.MethodGet, "/v1/sandboxes/{ref}/egress/log", "egress_log", s.egressLog},
		{http.MethodGet, "/v1/approvals", "list_approvals", s.approvals},
		{http.MethodPost, "/v1/approvals/{approval}", "answer_approval", s.answerApproval},
		{http.MethodGet, "/v1/status", "status", s.status},
		{http.MethodGet, "/v1/doctor", "doctor", s.doctor},
		{http.MethodGet, "/v1/metrics", "metrics", s.metrics},
		{http.MethodGet, "/v1/version", "version", s.versionInfo},
		{http.MethodGet, "/v1/openapi.yaml", "version", s.openapi},
	}
}
