package httpapi

import (
	"fmt"
	"net/http"

	"github.com/cloche-dev/cloche/api"
)

// maxTrailer is the size of trailers that common HTTP clients read, less space for the other
// trailers.
const maxTrailer = 3 << 10

func (s *Server) tarOut(w http.ResponseWriter, r request) error {
	q := queryOf(r)
	path := q.path("path")
	o := api.TarOutOptions{Exclude: q.all("exclude"), KeepLinks: q.oneOf("links", "relative", "keep") == "keep", CopyHardLinks: q.oneOf("hard_links", "keep", "copy") == "copy"}
	if err := q.end(); err != nil {
		return err
	}
	h := w.Header()
	h.Set("Content-Type", "application/x-tar")
	h.Set("Trailer", trailerTarReport+", "+trailerError)
	out := newRawWriter(w)
	defer out.close()
	report, err := s.core.TarOut(r.Context(), r.caller, r.ref(), path, o, out)
	switch {
	case err == nil:
		h.Set(trailerTarReport, reportTrailer(report))
		return nil
	case !out.begun:
		return err
	case r.Context().Err() != nil:
		return err // the client has disconnected and cannot read a trailer
	case !readsTrailers(r):
		return fmt.Errorf("read archive: %w", err)
	}
	h.Set(trailerError, headerJSON(toWire(err, r)))
	return nil
}

func (s *Server) tarIn(w http.ResponseWriter, r request) error {
	q := queryOf(r)
	path := q.path("path")
	o := api.TarInOptions{
		Exclude: q.all("exclude"), Owner: q.str("owner"), Atomic: q.boolean("atomic"), Clear: q.boolean("clear"), Keep: q.all("keep"),
		Links: api.ExternalLinks(q.oneOf("external_symlinks", string(api.LinksKeep), string(api.LinksDrop), string(api.LinksReject))),
	}
	if err := q.end(); err != nil {
		return err
	}
	if err := contentType(r, "application/x-tar"); err != nil {
		return err
	}
	in := newRawReader(w, r)
	defer in.close()
	report, err := s.core.TarIn(r.Context(), r.caller, r.ref(), path, o, in)
	if err != nil {
		return err
	}
	writeJSON(w, http.StatusOK, report)
	return nil
}

// reportTrailer names as many of the skipped entries as a trailer holds, and
// counts the others in a last one.
func reportTrailer(report api.TarReport) string {
	all := report.Skipped
	for n := len(all); ; n /= 2 {
		report.Skipped = all[:n:n]
		if n < len(all) {
			report.Skipped = append(report.Skipped, api.TarSkip{Reason: fmt.Sprintf("and %d more", len(all)-n)})
		}
		if s := headerJSON(report); len(s) <= maxTrailer || n == 0 {
			return s
		}
	}
}
