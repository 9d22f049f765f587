package httpapi

import "net/http"

// route is one path of the API with one method.
type route struct {
	method, path string
	serve        handler
}

// routes is the whole API. A test holds it against the contract.
func (s *Server) routes() []route {
	return []route{
		{http.MethodPost, "/v1/sandboxes", s.createSandbox},
		{http.MethodGet, "/v1/sandboxes", s.listSandboxes},
		{http.MethodGet, "/v1/sandboxes/{ref}", s.getSandbox},
		{http.MethodDelete, "/v1/sandboxes/{ref}", s.removeSandbox},
		{http.MethodPost, "/v1/sandboxes/{ref}/stop", s.stopSandbox},
		{http.MethodPost, "/v1/sandboxes/{ref}/kill", s.killSandbox},
		{http.MethodPost, "/v1/sandboxes/{ref}/exec", s.exec},
		{http.MethodGet, "/v1/sandboxes/{ref}/exec/stream", s.execStream},
		{http.MethodGet, "/v1/sandboxes/{ref}/processes", s.processes},
		{http.MethodGet, "/v1/sandboxes/{ref}/logs", s.logs},
		{http.MethodGet, "/v1/sandboxes/{ref}/files", s.readFile},
		{http.MethodPut, "/v1/sandboxes/{ref}/files", s.writeFile},
		{http.MethodDelete, "/v1/sandboxes/{ref}/files", s.removeFile},
		{http.MethodGet, "/v1/sandboxes/{ref}/files/stat", s.statFile},
		{http.MethodGet, "/v1/sandboxes/{ref}/files/list", s.listFiles},
		{http.MethodPost, "/v1/sandboxes/{ref}/files/move", s.moveFile},
		{http.MethodPost, "/v1/sandboxes/{ref}/files/mkdir", s.makeDir},
		{http.MethodGet, "/v1/sandboxes/{ref}/tar", s.tarOut},
		{http.MethodPut, "/v1/sandboxes/{ref}/tar", s.tarIn},
		{http.MethodPost, "/v1/run", s.run},
		{http.MethodGet, "/v1/run/stream", s.runStream},
		{http.MethodGet, "/v1/images", s.images},
		{http.MethodGet, "/v1/status", s.status},
		{http.MethodGet, "/v1/doctor", s.doctor},
		{http.MethodGet, "/v1/version", s.versionInfo},
		{http.MethodGet, "/v1/openapi.yaml", s.openapi},
	}
}
