package client

import "iter"

// pages iterates over a list in pages. ask returns the page at a cursor and the cursor of the next
// page, which is empty after the last. The sequence ends after the first error.
func pages[T any](cursor string, ask func(cursor string) (page []T, next string, err error)) iter.Seq2[T, error] {
	return func(yield func(T, error) bool) {
		var none T
		// Each iteration over the sequence begins at the caller's cursor.
		for at := cursor; ; {
			page, next, err := ask(at)
			if err != nil {
				yield(none, err)
				return
			}
			for _, v := range page {
				if !yield(v, nil) {
					return
				}
			}
			if next == "" {
				return
			}
			if next == at {
				yield(none, brokenAnswer("the daemon answered with the cursor that it was asked with"))
				return
			}
			at = next
		}
	}
}
