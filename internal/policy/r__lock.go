package policy

import (
	"strconv"
)

// lockable reports which fields a profile can lock.
func lockable(field string) bool {
	switch field {
	case fieldNetwork, fieldEgress, fieldImage, fieldReadOnlyRoot, fieldWorkspaceReadOnly, fieldMountsReadOnly:
		return true
	}
	return isLimit(field)
}

func isLimit(field string) bool {
	for _, l := range limits() {
		if l.field == field {
			return true
		}
	}
	return false
}

func at(list string, i int) string { return list + "[" + strconv.Itoa(i) + "]" }

// bounded returns a caller's value for a record. It is unchanged if it is short and plain.
func bounded(s string) string {
	if q := show(s); len(s) > maxShown || len(q) != len(s)+2 {
		return q
	}
	return s
}
