package archive

import "archive/tar"

// CheckHeader makes an Entry of a header for whoever reads a tar himself: its
// path clean and inside, its kind known, its size and name taken from b.
func CheckHeader(h *tar.Header, b *Budget) (Entry, error) {
	e, err := tarEntry(h)
	if err != nil {
		return Entry{}, err
	}
	return validate(e, b)
}
