package ingress

import (
	"encoding/json"
	"html/template"
	"net/http"
	"strings"
)

// page is an answer of the server itself.
type page struct {
	Title, Text, Advice string
	// Code is for programs.
	Code string
}

// pageText has no script, and loads nothing.
const pageText = `<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width"><title>{{.Title}}</title>
<style>body{font:16px/1.5 system-ui,sans-serif;max-width:40em;margin:15vh auto;padding:0 1em;color:#222;background:#fff}
h1{font-size:1.4em}p{margin:.6em 0}.advice{color:#555}</style></head>
<body><main><h1>{{.Title}}</h1><p>{{.Text}}</p><p class="advice">{{.Advice}}</p></main></body></html>
`

// write answers with a page for a browser, and with JSON for other clients.
func write(w http.ResponseWriter, r *http.Request, status int, p page) {
	h := w.Header()
	h.Set("Cache-Control", "no-store")
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("Referrer-Policy", "no-referrer")
	h.Set("Vary", "Accept")
	if r.ProtoMajor == 1 && r.Body != nil && r.Body != http.NoBody {
		h.Set("Connection", "close") // the body is not read
	}
	if !strings.Contains(r.Header.Get("Accept"), "text/html") {
		h.Set("Content-Type", "application/json")
		w.WriteHeader(status)
		_ = json.NewEncoder(w).Encode(map[string]any{"error": map[string]string{"code": p.Code, "message": p.Text, "hint": p.Advice}})
		return
	}
	h.Set("Content-Type", "text/html; charset=utf-8")
	h.Set("Content-Security-Policy", "default-src 'none'; style-src 'unsafe-inline'; frame-ancestors 'none'; base-uri 'none'; form-action 'none'")
	w.WriteHeader(status)
	_ = template.Must(template.New("page").Parse(pageText)).Execute(w, p)
}

// refused is the one answer for a port that is not open and for one that the client may not use.
func refused(w http.ResponseWriter, r *http.Request) {
	write(w, r, http.StatusNotFound, page{
		Title: "Not found", Text: "No open port has this address, or this client has no access to it.",
		Advice: "Use the complete URL that `cloche port open` printed.", Code: "not_found",
	})
}

func badRequest(w http.ResponseWriter, r *http.Request) {
	write(w, r, http.StatusBadRequest, page{Title: "Bad request", Text: "The request cannot be passed on to a port.", Code: "invalid"})
}

func unavailable(w http.ResponseWriter, r *http.Request, text, advice, code string) {
	w.Header().Set("Retry-After", "5")
	write(w, r, http.StatusServiceUnavailable, page{Title: "Not available", Text: text, Advice: advice, Code: code})
}
