package archive

import (
	"archive/tar"
	"errors"
	"io"
)

// Located is an entry of a tar, and where in the tar its content is.
type Located struct {
	Entry
	// Offset is -1 for a file that does not lie in one piece.
	Offset int64
}

// Index reads the headers of an uncompressed tar and leaves out the content of
// its files, so that they can be read in any order.
func Index(r io.ReadSeeker, l Limits) ([]Located, error) {
	b := NewBudget(l)
	t := tar.NewReader(r)
	var list []Located
	for {
		h, err := t.Next()
		if errors.Is(err, io.EOF) {
			return list, nil
		}
		if err != nil {
			return nil, classify(err)
		}
		if h.Typeflag == tar.TypeXGlobalHeader {
			if err := b.entry("", "", 0); err != nil {
				return nil, err
			}
			continue
		}
		e, err := tarEntry(h)
		if err == nil {
			e, err = validate(e, b)
		}
		if err != nil {
			return nil, err
		}
		at := int64(-1)
		if e.Kind == File && !sparse(h) {
			if at, err = r.Seek(0, io.SeekCurrent); err != nil {
				return nil, classify(err)
			}
		}
		list = append(list, Located{Entry: e, Offset: at})
	}
}

func sparse(h *tar.Header) bool {
	return h.Typeflag == tar.TypeGNUSparse || h.PAXRecords["GNU.sparse.major"] != "" || h.PAXRecords["GNU.sparse.map"] != ""
}
