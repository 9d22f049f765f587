package langbot

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"io"
	"os"
	"strings"
)

// markerPrefix begins the name of a file by which LangBot finds out whether both see
// the same directory.
const markerPrefix = ".langbot-box-volume-probe-"

// maxMarker bounds that file.
const maxMarker = 1024

type marker struct {
	Name string `json:"marker_name"`
	Sum  string `json:"sha256"`
	Size int64  `json:"size"`
}

// verifyShared tells what is in a marker in the default workspace. No link is
// followed to it.
func (s *Server) verifyShared(data json.RawMessage) (any, error) {
	m, err := decode[marker](data)
	if err != nil {
		return nil, err
	}
	rest, ok := strings.CutPrefix(m.Name, markerPrefix)
	if !ok || len(rest) != 32 || strings.Trim(rest, "0123456789abcdef") != "" {
		return nil, failed(classReadiness, "marker_name: it is no name of a marker")
	}
	cfg := s.settings()
	if cfg.workspace == "" || !cfg.allowed(resolved(cfg.workspace)) {
		return nil, failed(classReadiness, "there is no default workspace below the allowed_mount_roots")
	}
	root, err := os.OpenRoot(cfg.workspace)
	if err != nil {
		return nil, failed(classReadiness, "the default workspace cannot be opened")
	}
	defer root.Close()
	f, err := root.OpenFile(m.Name, os.O_RDONLY|noLink, 0)
	if err != nil {
		return nil, failed(classReadiness, "the marker is not in the default workspace")
	}
	defer f.Close()
	fi, err := f.Stat()
	if err != nil || !fi.Mode().IsRegular() || fi.Size() < 1 || fi.Size() > maxMarker {
		return nil, failed(classReadiness, "the marker is no file of 1 to %d bytes", maxMarker)
	}
	// os.Root goes through a link that stays inside: a marker is no link at all.
	if li, err := root.Lstat(m.Name); err != nil || !os.SameFile(li, fi) {
		return nil, failed(classReadiness, "the marker is a link")
	}
	content, err := io.ReadAll(io.LimitReader(f, maxMarker+1))
	if err != nil || int64(len(content)) != fi.Size() {
		return nil, failed(classReadiness, "the marker cannot be read")
	}
	sum := sha256.Sum256(content)
	return marker{m.Name, hex.EncodeToString(sum[:]), fi.Size()}, nil
}
