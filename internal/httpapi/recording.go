package httpapi

import (
	"io"
	"net/http"
)

// recordingType is a recording: JSON lines.
const recordingType = "application/jsonl"

func (s endpoints) recordings(w http.ResponseWriter, r request) error {
	if err := queryOf(r).end(); err != nil {
		return err
	}
	list, err := s.core.Recordings(r.Context(), r.caller)
	if err != nil {
		return err
	}
	list.Recordings = nonNil(list.Recordings)
	writeJSON(w, http.StatusOK, list)
	return nil
}

func (s endpoints) getRecording(w http.ResponseWriter, r request) error {
	if err := queryOf(r).end(); err != nil {
		return err
	}
	info, err := s.core.GetRecording(r.Context(), r.caller, clip(r.PathValue("name"), 80))
	if err != nil {
		return err
	}
	writeJSON(w, http.StatusOK, info)
	return nil
}

func (s endpoints) readRecording(w http.ResponseWriter, r request) error {
	if err := queryOf(r).end(); err != nil {
		return err
	}
	return raw(w, r, recordingType, func(out io.Writer) error {
		return s.core.ReadRecording(r.Context(), r.caller, clip(r.PathValue("name"), 80), out)
	})
}

func (s endpoints) putRecording(w http.ResponseWriter, r request) error {
	if err := queryOf(r).end(); err != nil {
		return err
	}
	if err := contentType(r, recordingType); err != nil {
		return err
	}
	in := newRawReader(w, r)
	defer in.close()
	info, err := s.core.PutRecording(r.Context(), r.caller, clip(r.PathValue("name"), 80), in)
	if err != nil {
		return err
	}
	writeJSON(w, http.StatusCreated, info)
	return nil
}

func (s endpoints) removeRecording(w http.ResponseWriter, r request) error {
	if err := queryOf(r).end(); err != nil {
		return err
	}
	if err := s.core.RemoveRecording(r.Context(), r.caller, clip(r.PathValue("name"), 80)); err != nil {
		return err
	}
	w.WriteHeader(http.StatusNoContent)
	return nil
}
