package archive

import (
	"strings"

	"github.com/cloche-dev/cloche/api"
)

// MaxSkipped bounds the entries that a report names.
const MaxSkipped = 1000

// Skip notes in a report that an entry was left out.
func Skip(report *api.TarReport, name, reason string) {
	if len(report.Skipped) < MaxSkipped {
		report.Skipped = append(report.Skipped, api.TarSkip{Path: strings.ToValidUTF8(name, "\uFFFD"), Reason: reason})
	}
}
