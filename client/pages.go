package client

import "iter"

// pages walks over a list of which ask gets the page at a cursor and the cursor of
// the next, which is empty behind the last. It ends after the first error.
func pages[T any](cursor string, ask func(cursor string) (page []T, next string, err error)) iter.Seq2[T, error] {
	return func(yield func(T, error) bool) {
		var none T
		// Each walk over the sequence begins where the caller asked to.
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
