package archive

import "archive/tar"

// CheckHeader makes an Entry of a header for a caller that reads a tar itself: its
// path clean and inside, its kind known, its size and name taken from b.
func CheckHeader(h *tar.Header, b *Budget) (Entry, error) {
	e, err := tarEntry(h)
	if err != nil {
		return Entry{}, err
	}
	return validate(e, b)
}
