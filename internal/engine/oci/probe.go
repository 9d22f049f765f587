//go:build linux

package oci

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"runtime"
	"slices"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/engine"
	"github.com/cloche-dev/cloche/internal/engine/hostrootfs"
)

// Probe implements engine.Engine. A machine that is usable stays so while its runtime
// is there; one that is not is probed again each time, because an operator may be
// fixing it.
func (e *Engine) Probe(ctx context.Context) engine.Report {
	e.probing.Lock()
	defer e.probing.Unlock()
	if e.probed.Usable && unix.Access(e.chosen.path, unix.X_OK) == nil {
		return e.probed
	}
	e.probed = e.probe(ctx)
	return e.probed
}

// runtime is the runtime that makes new sandboxes.
func (e *Engine) runtime(ctx context.Context) (binary, error) {
	if r := e.Probe(ctx); !r.Usable {
		what := api.Problem{What: "nothing is known of it"}
		if len(r.Problems) > 0 {
			what = r.Problems[0]
		}
		if ctx.Err() != nil {
			return binary{}, api.Errorf(api.CodeCanceled, "create sandbox: canceled while: find the runtime").WithCause(ctx.Err())
		}
		return binary{}, api.Errorf(api.CodeUnavailable, "create sandbox: the oci engine cannot run here: %s", what.What).WithHint("%s", what.Mend)
	}
	e.probing.Lock()
	defer e.probing.Unlock()
	return e.chosen, nil
}

// verdict is what is known of one runtime.
type verdict struct {
	name    string
	found   binary
	problem *api.Problem
}

// text is a verdict in a line, for people.
func (v verdict) text() string {
	text := "usable"
	if v.problem != nil {
		text = "not usable: " + v.problem.What
	} else if len(v.found.hide()) > 0 {
		text += "; it wants one version of cgroups, and is shown version 1 alone"
	}
	if v.found.Number != "" {
		text = v.found.Name + " " + v.found.Number + ", " + text
	}
	return text
}

// probe asks every runtime that may be chosen what it is, side by side, so that one
// that hangs delays no other.
func (e *Engine) probe(ctx context.Context) engine.Report {
	r := engine.Report{
		SharesHostFS: true,
		Name:         Name, Tier: tier(e.opts.Runtime), Enforces: e.groups.Enforcement(),
		Facts: map[string]string{"cgroup": e.groups.Describe(), "ids": e.ids.Where()},
	}
	r.Enforces["disk_bytes"] = api.Enforcement{OK: true}
	r.Enforces["egress"] = e.egress()
	hostrootfs.ReportSockets(r.Enforces, hostrootfs.Closing{ReadOnly: true, Covers: true, Landlock: hostrootfs.LandlockVersion()})
	names := []string{Runc, Crun, Krun}
	if e.opts.Runtime != "" && !slices.Contains(names, e.opts.Runtime) {
		names = append(names, e.opts.Runtime)
	}
	verdicts := make([]verdict, len(names))
	var wg sync.WaitGroup
	for i, name := range names {
		wg.Go(func() { verdicts[i] = judge(ctx, name) })
	}
	wg.Wait()
	e.chosen = binary{}
	for _, v := range verdicts {
		r.Facts[v.name] = v.text()
		named := v.name == e.opts.Runtime
		switch {
		case named && v.problem != nil:
			r.Problems = append(r.Problems, *v.problem)
		case v.problem == nil && e.chosen.path == "" && (named || e.opts.Runtime == "" && v.name != Krun):
			e.chosen, r.Facts["runtime"] = v.found, v.found.Name
		}
	}
	if e.chosen.path == "" && len(r.Problems) == 0 {
		r.Problems = append(r.Problems, api.Problem{
			What: "there is no runtime that can be used: " + Runc + " is " + verdicts[0].text() + "; " + Crun + " is " + verdicts[1].text(),
			Mend: "install runc or crun, or name another runtime in the setting oci.runtime",
		})
	}
	r.Enforces[api.EnforcesKernelTables], r.Enforces[api.EnforcesKernelFiles] = api.Enforcement{OK: true}, api.Enforcement{OK: true}
	if e.chosen.path != "" && !hasOwnTables(e.chosen.Name) {
		r.Enforces[api.EnforcesKernelTables] = api.Enforcement{
			Reason: "what the kernel counts by user, such as inotify instances and timers, is shared with root: " + e.chosen.Name + " needs a daemon with CAP_SYS_RESOURCE to give a sandbox its own, crun does not",
		}
	}
	if p := e.place(); p != nil {
		r.Problems = append(r.Problems, *p)
	}
	if err := hostrootfs.CheckFilters(); err != nil {
		r.Problems = append(r.Problems, api.Problem{What: err.Error(), Mend: hostrootfs.FilterMend})
	}
	r.Usable = len(r.Problems) == 0
	return r
}

// judge looks at one runtime.
func judge(ctx context.Context, name string) verdict {
	v := verdict{name: name}
	var err error
	v.found, err = ask(ctx, name)
	switch {
	case errors.Is(err, exec.ErrNotFound):
		v.problem = &api.Problem{What: "it is not installed", Mend: "install the package " + map[string]string{Runc: "runc", Crun: "crun", Krun: "crun, built with libkrun"}[name]}
	case errors.Is(err, unix.ENOENT) || errors.Is(err, unix.EACCES):
		v.problem = &api.Problem{What: "there is no such program, or the daemon may not start it", Mend: "name another runtime in the setting oci.runtime"}
	case errors.Is(err, errHangs):
		v.problem = &api.Problem{What: fmt.Sprintf("it has not said its version in %s", sayTimeout), Mend: "try it by hand, or name another runtime in the setting oci.runtime"}
	case err != nil:
		v.problem = &api.Problem{What: "it does not say what it is: " + err.Error(), Mend: "reinstall it, or name another runtime in the setting oci.runtime"}
	case name == Krun:
		v.problem = virtual(v.found)
	}
	return v
}

// virtual says why no virtual machine is made of a sandbox. libkrun passes no descriptors
// on and gives its machine no socket of Cloche's, so that the agent could not be reached; and only a
// boot shows whether the machine can.
func virtual(b binary) *api.Problem {
	if !slices.Contains(b.Features, "LIBKRUN") {
		return &api.Problem{What: "this crun has no handler for virtual machines (libkrun)", Mend: "install a crun that is built with libkrun, and libkrun"}
	}
	if unix.Access("/dev/kvm", unix.R_OK|unix.W_OK) != nil {
		return &api.Problem{What: "the daemon may not use /dev/kvm", Mend: "run it on a machine with KVM, as a user that may use it"}
	}
	return &api.Problem{
		What: "a machine of libkrun's gets none of the descriptors by which the agent is reached",
		Mend: "for a virtual machine use the docker engine with kata as its runtime",
	}
}

// place says what of this machine is in the way of any runtime.
func (e *Engine) place() *api.Problem {
	if !e.root {
		return &api.Problem{What: "the oci engine needs root, to prepare what the runtime is given", Mend: "run the daemon as root, or use engine gvisor or native"}
	}
	if e.chosen.path == "" {
		return nil
	}
	ids, err := e.ids.Take()
	if err != nil {
		return &api.Problem{What: err.Error(), Mend: "remove sandboxes"}
	}
	defer e.ids.Release(ids.UID)
	if p := e.images.CheckOwners(ids); p != nil {
		return p
	}
	ns, err := makeNamespaces(e.chosen, ids)
	if err != nil {
		return &api.Problem{
			What: fmt.Sprintf("no namespaces can be made: %v", err),
			Mend: "run it where user namespaces are allowed: sysctl -w user.max_user_namespaces=15000, or in a container with CAP_SYS_ADMIN and a seccomp profile that allows clone and ptrace",
		}
	}
	ns.close()
	if runtime.GOARCH != "amd64" && runtime.GOARCH != "arm64" {
		return &api.Problem{What: "there is no list of system calls for " + runtime.GOARCH, Mend: "use another engine"}
	}
	return nil
}

// egress says whether there can be a link.
func (e *Engine) egress() api.Enforcement {
	if unix.Access("/dev/net/tun", unix.R_OK|unix.W_OK) != nil {
		return api.Enforcement{Reason: "the user of the daemon may not open /dev/net/tun"}
	}
	return api.Enforcement{OK: true}
}
