package e2bapi

import (
	"net/http"

	"github.com/cloche-dev/cloche/internal/core"
)

// routes adds the routes of the control plane.
func (s *Server) routes() {
	const (
		list, get, create, remove = core.Verb("list"), core.Verb("get"), core.Verb("create"), core.Verb("remove")
		extend, pause, resume     = core.Verb("extend"), core.Verb("pause"), core.Verb("resume")
	)
	s.mux.HandleFunc("GET /health", func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusNoContent) })
	s.handle("POST /sandboxes", create, s.create(timeoutV1))
	s.handle("POST /v2/sandboxes", create, s.create(timeoutV2))
	s.handle("GET /sandboxes", list, s.listV1)
	s.handle("GET /v2/sandboxes", list, s.list)
	s.handle("GET /sandboxes/{id}", get, s.info)
	s.handle("DELETE /sandboxes/{id}", remove, s.kill)
	s.handle("POST /sandboxes/{id}/connect", extend, s.connect(timeoutV1, 0))
	s.handle("POST /v2/sandboxes/{id}/connect", extend, s.connect(timeoutV2, 0))
	s.handle("POST /sandboxes/{id}/resume", resume, s.connect(timeoutV1, http.StatusConflict))
	s.handle("POST /sandboxes/{id}/timeout", extend, s.timeout)
	s.handle("POST /sandboxes/{id}/refreshes", extend, s.refresh)
	s.handle("POST /sandboxes/{id}/pause", pause, s.pause)
	s.handle("POST /sandboxes/{id}/fork", core.Verb("fork"), s.fork)
	s.handle("PUT /sandboxes/{id}/network", core.Verb("change_egress"), s.setNetwork)
	s.handle("GET /sandboxes/{id}/metrics", get, s.metrics)
	s.handle("POST /sandboxes/{id}/snapshots", core.Verb("create_snapshot"), s.createSnapshot)
	s.handle("GET /snapshots", core.Verb("list_snapshots"), s.snapshots)
	s.handle("DELETE /templates/{id}", core.Verb("remove_snapshot"), s.removeTemplate)
	s.handle("GET /sandboxes/{id}/logs", core.Verb("logs"), s.logsV1)
	s.handle("GET /v2/sandboxes/{id}/logs", core.Verb("logs"), s.logs)
	s.handle("GET /templates", core.Verb("images"), s.templates)
	s.handle("GET /v2/templates", core.Verb("images"), s.templates)
	s.handle("GET /templates/{id}/{part}", core.Verb("inspect_image"), s.aliasOrTags)
	s.handle("POST /v3/templates", core.Verb("build_image"), s.requestBuild)
	s.handle("GET /templates/{id}/files/{hash}", core.Verb("build_image"), s.uploadURL)
	s.mux.HandleFunc("PUT /templates/uploads/{token}", s.upload)
	s.handle("POST /v2/templates/{id}/builds/{build}", core.Verb("build_image"), s.startBuild)
	s.handle("GET /templates/{id}/builds/{build}/status", core.Verb("inspect_image"), s.buildStatus)
	s.handle("POST /templates/tags", core.Verb("build_image"), s.assignTags)
	s.handle("DELETE /templates/tags", core.Verb("remove_image"), s.removeTags)

	refuse := func(text string, patterns ...string) {
		for _, p := range patterns {
			s.handle(p, get, func(http.ResponseWriter, request) error { return unsupported("%s", text) })
		}
	}
	refuse("this server has no volumes: use a named workspace", "POST /volumes", "GET /volumes", "GET /volumes/{id}", "DELETE /volumes/{id}")
	refuse("secrets are set by the operator's policy, and programs never see them", "GET /secrets", "POST /secrets", "GET /secrets/{id}", "POST /secrets/{id}", "DELETE /secrets/{id}")
}
