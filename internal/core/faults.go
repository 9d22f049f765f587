package core

import (
	"fmt"

	"github.com/cloche-dev/cloche"
)

// faults are what is wrong with the daemon's own state; empty fields are fine.
type faults struct {
	home     string // what its file system has run out of
	audit    bool   // records cannot be written
	refuses  bool   // what needs a record is refused for that
	rejected string // why the policy file is not in force
}

// faults looks for what is wrong now.
func (s *Service) faults() faults {
	f := faults{home: s.opts.HomeFull(s.opts.Home)}
	f.audit, f.refuses = s.opts.Audit.Failing()
	if why := s.rejected.Load(); why != nil {
		f.rejected = *why
	}
	return f
}

// blocks says why no sandbox can be made; empty is that nothing here prevents it.
func (f faults) blocks() (reason cloche.StatusReason, message string) {
	switch {
	case f.home != "":
		return cloche.ReasonDiskFull, "the file system of the daemon's home " + f.home
	case f.refuses:
		return cloche.ReasonAuditFailing, "the audit log cannot be written, and nothing is done without a record"
	}
	return "", ""
}

// problems tells all of it to the operator.
func (f faults) problems() []cloche.Problem {
	var out []cloche.Problem
	if f.home != "" {
		out = append(out, cloche.Problem{What: "the file system of the daemon's home " + f.home, Mend: "remove what is not needed, or make it larger"})
	}
	if f.audit {
		does := "requests are served without a record, and counted"
		if f.refuses {
			does = "what needs a record is refused"
		}
		out = append(out, cloche.Problem{What: "the audit log cannot be written: " + does, Mend: "the reason is in the daemon's log"})
	}
	if f.rejected != "" {
		out = append(out, cloche.Problem{
			What: fmt.Sprintf("the policy file was rejected, and the older rules stay in force: %s", f.rejected), Mend: "correct the policy file",
		})
	}
	return out
}
