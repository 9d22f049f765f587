package policy_test

import (
	"fmt"
	"maps"
	"math"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/policy"
	"github.com/cloche-dev/cloche/internal/policy/rules"
)

func TestDefaultsAreFilledIn(t *testing.T) {
	p := decide(t, api.SandboxSpec{}, operator, rules.Rules{})
	got := p.Spec()
	want := api.SandboxSpec{
		Profile: "agent", Image: "host", Pull: "missing", Engine: "gvisor", Network: "none", Cwd: "/workspace",
		Workspace:    &api.Workspace{Path: "/workspace", SizeBytes: 4 << 30, Inodes: 262144, Quota: "watched", Enforced: "watched"},
		ReadOnlyRoot: new(false), Persistent: new(true),
		Limits: api.Limits{CPUs: 2, MemoryBytes: 2 << 30, Pids: 1024, DiskBytes: 6 << 30, TmpBytes: 512 << 20, ShmBytes: 64 << 20, MaxOutputBytes: 1 << 20},
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("granted\n%+v\nwant\n%+v", got, want)
	}
	if p.Tenant() != "local" || p.Engine() != "gvisor" || p.Tier() != api.TierGVisor || p.Profile() != "agent" {
		t.Errorf("tenant %q engine %q tier %q profile %q", p.Tenant(), p.Engine(), p.Tier(), p.Profile())
	}
	if len(p.Adjusted())+len(p.Unenforced())+len(p.Demanded())+len(p.Mounts()) != 0 {
		t.Errorf("nothing was asked, yet: %+v", p)
	}
}

func TestZeroPermitIsInvalid(t *testing.T) {
	if (policy.Permit{}).Valid() || (policy.ExecPermit{}).Valid() {
		t.Error("a zero permit is valid")
	}
	p, err := policy.Decide(policy.Request{Spec: api.SandboxSpec{Name: "!"}}, operator, rules.Rules{})
	if err == nil || p.Valid() {
		t.Error("a refused request has a valid permit")
	}
}

func TestBuiltinProfiles(t *testing.T) {
	const mib = 1 << 20
	for name, want := range map[string]struct {
		limits   api.Limits
		readOnly bool
	}{
		"agent":            {api.Limits{CPUs: 2, MemoryBytes: 2048 * mib, Pids: 1024, TmpBytes: 512 * mib, ShmBytes: 64 * mib}, false},
		"default":          {api.Limits{CPUs: 1, MemoryBytes: 512 * mib, Pids: 128, TimeoutMS: 30_000, TmpBytes: 2730 << 16, ShmBytes: 64 * mib}, true},
		"offline_readonly": {api.Limits{CPUs: 0.5, MemoryBytes: 256 * mib, Pids: 64, TimeoutMS: 30_000, TmpBytes: 1365 << 16, ShmBytes: 64 * mib}, true},
	} {
		p := decide(t, api.SandboxSpec{Profile: name}, operator, rules.Rules{})
		l := p.Limits()
		l.DiskBytes, l.MaxOutputBytes = 0, 0
		if l != want.limits || *p.Spec().ReadOnlyRoot != want.readOnly {
			t.Errorf("%s: %+v read-only %t, want %+v", name, l, *p.Spec().ReadOnlyRoot, want)
		}
	}
}

func TestLocksOverwriteAndReport(t *testing.T) {
	p := decide(t, api.SandboxSpec{
		Profile: "offline_readonly", Network: "on", ReadOnlyRoot: new(false), Workspace: &api.Workspace{Name: "w"},
		Limits: api.Limits{TimeoutMS: 90_000},
	}, operator, rules.Rules{})
	s := p.Spec()
	if s.Network != "none" || !*s.ReadOnlyRoot || !s.Workspace.ReadOnly || s.Limits.TimeoutMS != 60_000 {
		t.Errorf("granted %+v", s)
	}
	want := []api.Adjustment{
		{Field: "network", Asked: "on", Used: "none", Rule: "profiles.offline_readonly.locked.network"},
		{Field: "workspace.read_only", Asked: "false", Used: "true", Rule: "profiles.offline_readonly.locked.workspace.read_only"},
		{Field: "read_only_root", Asked: "false", Used: "true", Rule: "profiles.offline_readonly.locked.read_only_root"},
		{Field: "limits.timeout_ms", Asked: "90000", Used: "60000", Rule: "profiles.offline_readonly.ceilings.timeout"},
	}
	if got := p.Adjusted(); !slices.Equal(got, want) {
		t.Errorf("adjusted\n%+v\nwant\n%+v", got, want)
	}
	// Nothing asked is nothing changed.
	if q := decide(t, api.SandboxSpec{Profile: "offline_readonly"}, operator, rules.Rules{}); len(q.Adjusted()) != 0 {
		t.Errorf("adjusted %+v although nothing was asked", q.Adjusted())
	}
}

func TestOperatorLocks(t *testing.T) {
	r := mustParse(t, `
profiles:
  agent:
    defaults: {memory: 1GiB}
    image: debian:12
    mounts_read_only: true
    locked: [image, limits.memory_bytes, limits.pids, mounts.read_only]
`)
	p := decide(t, api.SandboxSpec{
		Image: "alpine", Limits: api.Limits{MemoryBytes: 3 << 30},
		Mounts: []api.Mount{{Source: "/home/alice/project", Target: "/src"}},
	}, operator, r)
	if s := p.Spec(); s.Image != "debian:12" || s.Limits.MemoryBytes != 1<<30 || !s.Mounts[0].ReadOnly || !p.Mounts()[0].ReadOnly {
		t.Errorf("granted %+v", s)
	}
	if n := len(p.Adjusted()); n != 3 {
		t.Errorf("adjusted %+v", p.Adjusted())
	}
	if want := []string{"limits.memory_bytes", "limits.pids"}; !slices.Equal(p.Demanded(), want) {
		t.Errorf("demanded %v, want %v", p.Demanded(), want)
	}
}

func long(n int) string { return strings.Repeat("x", n) }

func many(n int) map[string]string {
	m := map[string]string{}
	for i := range n {
		m[fmt.Sprintf("k%d", i)] = "v"
	}
	return m
}

// TestInvalidRequests has one row for each sentence of what a request can be.
func TestInvalidRequests(t *testing.T) {
	type spec = api.SandboxSpec
	const invalid, large = api.CodeInvalid, api.CodeTooLarge
	mounts := func(targets ...string) spec {
		var s spec
		for _, m := range targets {
			s.Mounts = append(s.Mounts, api.Mount{Source: "/home/alice/project", Target: m})
		}
		return s
	}
	file := func(path string) spec { return spec{Files: []api.File{{Path: path}}} }
	work := func(w api.Workspace) spec { return spec{Workspace: &w} }
	lim := func(l api.Limits) spec { return spec{Limits: l} }
	for name, c := range map[string]struct {
		spec spec
		want want
	}{
		"unknown profile": {spec{Profile: "nope"}, want{invalid, "profile", "", "agent, default, network_basic"}},
		"name upper case": {spec{Name: "Bad"}, want{invalid, "name", "", "a-z"}},
		"name slash":      {spec{Name: "../x"}, want{invalid, "name", "", ""}},
		"name too long":   {spec{Name: long(200)}, want{invalid, "name", "", ""}},

		"label key empty":        {spec{Labels: map[string]string{"": "v"}}, want{invalid, "labels.", "", ""}},
		"label key space":        {spec{Labels: map[string]string{"a b": "v"}}, want{invalid, "labels.a b", "", ""}},
		"label key long":         {spec{Labels: map[string]string{long(65): "v"}}, want{invalid, "", "", "64"}},
		"label value control":    {spec{Labels: map[string]string{"a": "x\ny"}}, want{invalid, "labels.a", "", ""}},
		"label value not UTF-8":  {spec{Labels: map[string]string{"a": "\xff"}}, want{invalid, "labels.a", "", ""}},
		"label value long":       {spec{Labels: map[string]string{"a": long(257)}}, want{large, "labels.a", "", "256"}},
		"too many labels":        {spec{Labels: many(65)}, want{large, "labels", "", "64"}},
		"env name empty":         {spec{Env: map[string]string{"": "v"}}, want{invalid, "env.", "", ""}},
		"env name equals":        {spec{Env: map[string]string{"A=B": "v"}}, want{invalid, "env.A=B", "", ""}},
		"env name NUL":           {spec{Env: map[string]string{"A\x00": "v"}}, want{invalid, "", "", ""}},
		"env value NUL":          {spec{Env: map[string]string{"A": "s\x00"}}, want{invalid, "env.A", "", "NUL"}},
		"env value over 128 KiB": {spec{Env: map[string]string{"A": long(128 << 10)}}, want{large, "env.A", "", "131071"}},
		"env of 2 MiB": {
			func() spec {
				e := map[string]string{}
				for i := range 32 {
					e[fmt.Sprint("V", i)] = long(64 << 10)
				}
				return spec{Env: e}
			}(), want{large, "env", "", "1048576"},
		},
		"too many variables": {spec{Env: many(4097)}, want{large, "env", "", ""}},
		"user with space":    {spec{User: "a b"}, want{invalid, "user", "", "uid:gid"}},
		"user negative":      {spec{User: "-1"}, want{invalid, "user", "", ""}},
		"user no-id":         {spec{User: "4294967295"}, want{invalid, "user", "", ""}},
		"user half":          {spec{User: "1000:"}, want{invalid, "user", "", ""}},
		"user three":         {spec{User: "1:2:3"}, want{invalid, "user", "", ""}},
		"network host":       {spec{Network: "host"}, want{invalid, "network", "", "none"}},

		"workspace both":          {work(api.Workspace{Name: "a", Dir: "/data"}), want{invalid, "workspace", "", "not both"}},
		"workspace name":          {work(api.Workspace{Name: "../etc"}), want{invalid, "workspace.name", "", ""}},
		"workspace path root":     {work(api.Workspace{Path: "/"}), want{invalid, "workspace.path", "", ""}},
		"workspace path relative": {work(api.Workspace{Path: "w"}), want{invalid, "workspace.path", "", "relative"}},
		"workspace path proc":     {work(api.Workspace{Path: "/proc/self"}), want{invalid, "workspace.path", "", "/proc"}},
		"workspace path ours":     {work(api.Workspace{Path: "/.cloche"}), want{invalid, "workspace.path", "", ""}},
		"workspace path dots":     {work(api.Workspace{Path: "/a/../proc"}), want{invalid, "workspace.path", "", ".."}},
		"cwd relative":            {spec{Cwd: "src"}, want{invalid, "cwd", "", "relative"}},
		"cwd NUL":                 {spec{Cwd: "/a\x00"}, want{invalid, "cwd", "", ""}},
		"cwd long":                {spec{Cwd: "/" + long(5000)}, want{invalid, "cwd", "", "4095"}},

		"target empty":        {mounts(""), want{invalid, "mounts[0].target", "", ""}},
		"target relative":     {mounts("a"), want{invalid, "mounts[0].target", "", ""}},
		"target root":         {mounts("//"), want{invalid, "mounts[0].target", "", ""}},
		"target dev":          {mounts("/dev/"), want{invalid, "mounts[0].target", "", "/dev"}},
		"target sys below":    {mounts("/a", "/sys/fs"), want{invalid, "mounts[1].target", "", ""}},
		"target twice":        {mounts("/a", "/a/"), want{invalid, "mounts[1].target", "", "mounts[0].target"}},
		"target is workspace": {mounts("/workspace"), want{invalid, "mounts[0].target", "", "workspace.path"}},
		"too many mounts":     {mounts(slices.Repeat([]string{"/a"}, 65)...), want{large, "mounts", "", "64"}},
		"source relative":     {spec{Mounts: []api.Mount{{Source: "p", Target: "/p"}}}, want{invalid, "mounts[0].source", "", "relative"}},
		"source dots":         {spec{Mounts: []api.Mount{{Source: "/a/../etc", Target: "/p"}}}, want{invalid, "mounts[0].source", "", ".."}},
		"source missing":      {spec{Mounts: []api.Mount{{Source: "/nope", Target: "/p"}}}, want{invalid, "mounts[0].source", "", "exist"}},
		"source a file":       {spec{Mounts: []api.Mount{{Source: "/data/file", Target: "/p"}}}, want{invalid, "mounts[0].source", "", "directory"}},

		"file relative":     {file("a"), want{invalid, "files[0].path", "", ""}},
		"file in proc":      {file("/proc/x"), want{invalid, "files[0].path", "", ""}},
		"file a directory":  {file("/a/"), want{invalid, "files[0].path", "", ""}},
		"file is workspace": {file("/workspace"), want{invalid, "files[0].path", "", "workspace"}},
		"file twice":        {spec{Files: []api.File{{Path: "/a"}, {Path: "//a"}}}, want{invalid, "files[1].path", "", "files[0]"}},
		"file mode setuid":  {spec{Files: []api.File{{Path: "/a", Mode: 0o4755}}}, want{invalid, "files[0].mode", "", "0777"}},
		"files too large":   {spec{Files: []api.File{{Path: "/a", Content: make([]byte, 33<<20)}}}, want{large, "files", "", "32MiB"}},
		"too many files":    {spec{Files: make([]api.File, 1025)}, want{large, "files", "", ""}},
		"file in read-only root": {
			spec{ReadOnlyRoot: new(true), Files: []api.File{{Path: "/etc/x"}}}, want{invalid, "files[0].path", "", "read-only"},
		},
		"file in read-only mount": {
			spec{
				Mounts: []api.Mount{{Source: "/home/alice/project", Target: "/workspace/p", ReadOnly: true}},
				Files:  []api.File{{Path: "/workspace/p/x"}},
			}, want{invalid, "files[0].path", "", "mount 0"},
		},

		"cpus negative":         {lim(api.Limits{CPUs: -1}), want{invalid, "limits.cpus", "", "-1"}},
		"cpus not a number":     {lim(api.Limits{CPUs: math.NaN()}), want{invalid, "limits.cpus", "", ""}},
		"cpus infinite":         {lim(api.Limits{CPUs: math.Inf(1)}), want{invalid, "limits.cpus", "", ""}},
		"cpus too little":       {lim(api.Limits{CPUs: 0.001}), want{invalid, "limits.cpus", "", "0.01"}},
		"cpus over ceiling":     {lim(api.Limits{CPUs: 65}), want{api.CodeDenied, "limits.cpus", "profiles.agent.ceilings.cpus", "at most 64"}},
		"memory negative":       {lim(api.Limits{MemoryBytes: -5}), want{invalid, "limits.memory_bytes", "", "-5"}},
		"memory too little":     {lim(api.Limits{MemoryBytes: 1}), want{invalid, "limits.memory_bytes", "", "32MiB"}},
		"memory over ceiling":   {lim(api.Limits{MemoryBytes: 65 << 30}), want{api.CodeDenied, "limits.memory_bytes", "profiles.agent.ceilings.memory", "ceilings: {memory: 65GiB}"}},
		"memory absurd":         {lim(api.Limits{MemoryBytes: math.MaxInt64}), want{invalid, "limits.memory_bytes", "", ""}},
		"pids negative":         {lim(api.Limits{Pids: -1}), want{invalid, "limits.pids", "", ""}},
		"pids over ceiling":     {lim(api.Limits{Pids: 40000}), want{api.CodeDenied, "limits.pids", "profiles.agent.ceilings.pids", "32768"}},
		"disk negative":         {lim(api.Limits{DiskBytes: -1}), want{invalid, "limits.disk_bytes", "", ""}},
		"disk over ceiling":     {lim(api.Limits{DiskBytes: 1 << 40}), want{api.CodeDenied, "limits.disk_bytes", "", "256GiB"}},
		"timeout negative":      {lim(api.Limits{TimeoutMS: -1}), want{invalid, "limits.timeout_ms", "", ""}},
		"timeout absurd":        {lim(api.Limits{TimeoutMS: math.MaxInt64}), want{invalid, "limits.timeout_ms", "", ""}},
		"output negative":       {lim(api.Limits{MaxOutputBytes: -1}), want{invalid, "limits.max_output_bytes", "", ""}},
		"output over its bound": {lim(api.Limits{MaxOutputBytes: 65 << 20}), want{invalid, "limits.max_output_bytes", "", "64MiB"}},

		"image syntax":   {spec{Image: "a b"}, want{invalid, "image", "", "reference"}},
		"image dash":     {spec{Image: "-rf"}, want{invalid, "image", "", ""}},
		"image dots":     {spec{Image: "a/../b"}, want{invalid, "image", "", ""}},
		"image too long": {spec{Image: long(513)}, want{invalid, "image", "", "512"}},
		"engine unknown": {spec{Engine: "nope"}, want{api.CodeNotFound, "engine", "", "auto, gvisor"}},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := policy.Decide(policy.Request{Spec: c.spec, Facts: facts()}, operator, rules.Rules{})
			c.want.check(t, err)
		})
	}
}

func TestValidRequests(t *testing.T) {
	for name, s := range map[string]api.SandboxSpec{
		"user name":         {User: "_www-data.x"},
		"user uid":          {User: "1000"},
		"user uid gid":      {User: "0:0"},
		"labels":            {Labels: map[string]string{"Team/owner.x": "grün ✓", "a": ""}},
		"image digest":      {Image: "ghcr.io/a/b:1@sha256:" + strings.Repeat("ab", 32)},
		"nested mount":      {Mounts: []api.Mount{{Source: "/home/alice/project", Target: "/workspace/p"}}},
		"reserved sibling":  {Mounts: []api.Mount{{Source: "/home/alice/project", Target: "/process"}, {Source: "/home/alice/project", Target: "/devel"}}},
		"another workspace": {Workspace: &api.Workspace{Path: "/srv/job"}},
		"file in tmp of ro": {ReadOnlyRoot: new(true), Files: []api.File{{Path: "/tmp/x"}}},
		"file in rw mount":  {ReadOnlyRoot: new(true), Mounts: []api.Mount{{Source: "/home/alice/project", Target: "/p"}}, Files: []api.File{{Path: "/p/x"}}},
		"limits at ceiling": {Limits: api.Limits{CPUs: 64, MemoryBytes: 64 << 30, Pids: 32768, DiskBytes: 256 << 30, MaxOutputBytes: 64 << 20, TimeoutMS: 1 << 30}},
		"limits at least":   {Limits: api.Limits{CPUs: 0.01, MemoryBytes: 32 << 20, Pids: 1, DiskBytes: 2 << 20, MaxOutputBytes: 1, TimeoutMS: 1}},
		"env at its bound":  {Env: map[string]string{"A": long(128<<10 - 3)}},
		"engine auto":       {Engine: "auto"},
		"engine by name":    {Engine: "gvisor"},
	} {
		t.Run(name, func(t *testing.T) { decide(t, s, operator, rules.Rules{}) })
	}
	s := decide(t, api.SandboxSpec{Workspace: &api.Workspace{Path: "/srv//job/"}}, operator, rules.Rules{}).Spec()
	if s.Workspace.Path != "/srv/job" || s.Cwd != "/srv/job" {
		t.Errorf("path %q cwd %q", s.Workspace.Path, s.Cwd)
	}
}

func TestErrorsNeverRepeatEnvValues(t *testing.T) {
	const secret = "hunter2-secret"
	for _, v := range []string{secret + "\x00", secret + long(128<<10)} {
		spec := api.SandboxSpec{Env: map[string]string{"TOKEN": v}}
		_, err := policy.Decide(policy.Request{Spec: spec, Facts: facts()}, operator, rules.Rules{})
		if err == nil || strings.Contains(fmt.Sprintf("%+v", err), "hunter2") {
			t.Errorf("error %v", err)
		}
		_, err = policy.DecideExec(api.ExecRequest{Shell: "x", Env: spec.Env}, policy.Settings{Tenant: "local"}, operator, rules.Rules{})
		if err == nil || strings.Contains(fmt.Sprintf("%+v", err), "hunter2") {
			t.Errorf("error %v", err)
		}
	}
}

func TestDisabledAndQuota(t *testing.T) {
	f := facts()
	try := func(c policy.Caller, set string) error {
		_, err := policy.Decide(policy.Request{Facts: f}, c, mustParse(t, set))
		return err
	}
	want{code: api.CodeDisabled, says: "enabled: true"}.check(t, try(operator, "enabled: false"))
	if err := try(operator, "enabled: true"); err != nil {
		t.Error(err)
	}
	f.Live, f.LiveTenant = 5, 2
	want{code: api.CodeNoCapacity, rule: "max_sandboxes"}.check(t, try(operator, "max_sandboxes: 5"))
	want{code: api.CodeTooMany, rule: "max_sandboxes_per_tenant", says: "2"}.check(t, try(tenant, "max_sandboxes_per_tenant: 2"))
	err := try(tenant, "max_sandboxes: 5")
	want{code: api.CodeNoCapacity}.check(t, err)
	if strings.ContainsAny(err.Error(), "0123456789") {
		t.Errorf("a tenant learns how many sandboxes others have: %v", err)
	}
	if e := err.(*api.Error); !e.Retryable || e.RetryAfterMS <= 0 {
		t.Errorf("no capacity without time to come again: %+v", e)
	}
	if err := try(operator, "max_sandboxes: 6\nmax_sandboxes_per_tenant: 3"); err != nil {
		t.Error(err)
	}
}

func TestEnforcement(t *testing.T) {
	f := facts()
	enforces := allEnforced()
	for k := range maps.Keys(enforces) {
		enforces[k] = api.Enforcement{Reason: "no delegated cgroup at /sys/fs/cgroup/x"}
	}
	enforces[api.EnforcesKernelTables] = api.Enforcement{Reason: "one user for all of a cgroup"}
	enforces[api.EnforcesKernelFiles] = api.Enforcement{Reason: "/proc/stat is that of another cgroup"}
	f.Engines[0].Enforces = enforces

	p, err := policy.Decide(policy.Request{Facts: f}, operator, rules.Rules{})
	if err != nil {
		t.Fatal(err)
	}
	var fields []string
	for _, u := range p.Unenforced() {
		fields = append(fields, u.Field)
		if !strings.Contains(u.Reason, "cgroup") {
			t.Errorf("reason %q", u.Reason)
		}
	}
	if want := []string{"limits.cpus", "limits.memory_bytes", "limits.pids", "limits.disk_bytes", "kernel_tables", "kernel_files"}; !slices.Equal(fields, want) {
		t.Errorf("unenforced %v", fields)
	}
	if want := (api.Limits{MaxOutputBytes: 1 << 20, TmpBytes: 512 << 20, ShmBytes: 64 << 20}); p.Limits() != want {
		t.Errorf("limits %+v, want %+v", p.Limits(), want)
	}

	_, err = policy.Decide(policy.Request{Spec: api.SandboxSpec{Limits: api.Limits{Pids: 10}}, Facts: f}, operator, rules.Rules{})
	want{code: api.CodeUnsupported, field: "limits.pids", says: "cgroup"}.check(t, err)
	_, err = policy.Decide(policy.Request{Spec: api.SandboxSpec{Limits: api.Limits{Pids: 10}}, Facts: f}, tenant, rules.Rules{})
	want{code: api.CodeUnsupported, field: "limits.pids"}.check(t, err)
	if strings.Contains(err.Error(), "/sys") {
		t.Errorf("a tenant reads a path of the host: %v", err)
	}
	for _, rule := range []string{"defaults: {memory: 1GiB}", "ceilings: {memory: 1GiB}", "locked: [limits.memory_bytes]"} {
		_, err = policy.Decide(policy.Request{Facts: f}, operator, mustParse(t, "profiles: {agent: {"+rule+"}}"))
		want{code: api.CodeUnsupported, field: "limits.memory_bytes", says: "profiles.agent."}.check(t, err)
	}
}

// inProfile are rules with an engine for the usual profile.
func inProfile(engine string) rules.Rules {
	return rules.Rules{Profiles: map[string]rules.ProfileRule{"agent": {Engine: engine}}}
}

func withEngine(r rules.Rules, engine string) rules.Rules {
	r.Engine = engine
	return r
}

func least(r rules.Rules, t api.Tier) rules.Rules {
	r.MinTier = t
	return r
}

func TestEngineChoice(t *testing.T) {
	native := api.EngineReport{Name: "native", Tier: api.TierNamespace, Usable: true, Enforces: allEnforced(), SharesHostFS: true}
	broken := gvisor()
	broken.Usable, broken.Problems = false, []api.Problem{{What: "no user namespaces", Mend: "write /proc/sys/x"}}
	vm := api.EngineReport{Name: "krun", Tier: api.TierMicroVM, Usable: true, Enforces: allEnforced(), SharesHostFS: true}
	none := api.EngineReport{Name: "stub", Tier: api.TierNone, Usable: true, Enforces: allEnforced(), SharesHostFS: true}
	for name, c := range map[string]struct {
		engines []api.EngineReport
		rules   rules.Rules
		caller  policy.Caller
		asked   string
		engine  string
		want    want
	}{
		"auto skips a shared kernel": {[]api.EngineReport{native, gvisor()}, rules.Rules{}, operator, "", "gvisor", want{}},
		"auto takes no microvm": {
			[]api.EngineReport{broken, vm}, rules.Rules{}, operator, "auto", "",
			want{api.CodeUnavailable, "engine", "", "krun: a microvm is chosen by name or by min_tier"},
		},
		"nor below one that is lower": {[]api.EngineReport{vm, native}, rules.Rules{MinTier: api.TierNamespace}, operator, "auto", "native", want{}},
		"a microvm by name":           {[]api.EngineReport{gvisor(), vm}, rules.Rules{}, operator, "krun", "krun", want{}},
		"a microvm by the least tier": {[]api.EngineReport{gvisor(), vm}, rules.Rules{MinTier: api.TierMicroVM}, tenant, "auto", "krun", want{}},
		"a microvm by the rule":       {[]api.EngineReport{gvisor(), vm}, rules.Rules{Engine: "krun"}, tenant, "", "krun", want{}},
		"the mend and the rule that accepts less": {
			[]api.EngineReport{broken, native}, rules.Rules{}, operator, "", "", want{api.CodeUnavailable, "engine", "", "min_tier: namespace"},
		},
		"a profile's engine":               {[]api.EngineReport{gvisor(), native}, inProfile("native"), tenant, "", "native", want{}},
		"a profile's goes before the rule": {[]api.EngineReport{gvisor(), native, vm}, withEngine(inProfile("native"), "krun"), tenant, "auto", "native", want{}},
		"a profile that says auto":         {[]api.EngineReport{native, gvisor()}, withEngine(inProfile("auto"), "native"), tenant, "", "gvisor", want{}},
		"a profile binds who may not choose": {
			[]api.EngineReport{gvisor(), native}, inProfile("native"), tenant, "gvisor", "",
			want{api.CodeDenied, "engine", "profiles.agent.engine", "profiles.agent.engine: gvisor"},
		},
		"the operator chooses in a profile": {[]api.EngineReport{gvisor(), native}, inProfile("native"), operator, "gvisor", "gvisor", want{}},
		"a profile's is below the least": {
			[]api.EngineReport{gvisor(), native}, least(inProfile("native"), api.TierGVisor), operator, "", "",
			want{api.CodeDenied, "engine", "min_tier", "min_tier: namespace"},
		},
		"a profile names one that is not": {[]api.EngineReport{gvisor()}, inProfile("native"), operator, "", "", want{api.CodeUnavailable, "", "", "profiles.agent.engine"}},
		"auto never falls silently": {
			[]api.EngineReport{broken, native}, rules.Rules{}, operator, "", "",
			want{api.CodeUnavailable, "engine", "", "no user namespaces (write /proc/sys/x); native: tier namespace"},
		},
		"auto falls when the rule says so": {[]api.EngineReport{broken, native}, rules.Rules{MinTier: api.TierNamespace}, operator, "", "native", want{}},
		"tests may use no tier":            {[]api.EngineReport{none}, rules.Rules{MinTier: api.TierNone}, operator, "", "stub", want{}},
		"tests may name it":                {[]api.EngineReport{none}, rules.Rules{Engine: "stub"}, tenant, "", "stub", want{}},
		"no tier is never automatic":       {[]api.EngineReport{none}, rules.Rules{MinTier: api.TierNamespace}, operator, "", "", want{api.CodeUnavailable, "", "", ""}},
		"operator names a weaker one":      {[]api.EngineReport{gvisor(), native}, rules.Rules{}, operator, "native", "native", want{}},
		"not below the minimum": {
			[]api.EngineReport{gvisor(), native}, rules.Rules{MinTier: api.TierGVisor}, operator, "native", "",
			want{api.CodeDenied, "engine", "min_tier", "min_tier: namespace"},
		},
		"tenant does not choose":       {[]api.EngineReport{gvisor(), native}, rules.Rules{}, tenant, "native", "", want{api.CodeDenied, "engine", "engine", "engine: native"}},
		"tenant may name what he gets": {[]api.EngineReport{gvisor(), native}, rules.Rules{}, tenant, "gvisor", "gvisor", want{}},
		"tenant gets the rule's":       {[]api.EngineReport{gvisor(), native}, rules.Rules{Engine: "native"}, tenant, "", "native", want{}},
		"rule names one that is not":   {[]api.EngineReport{gvisor()}, rules.Rules{Engine: "native"}, operator, "", "", want{api.CodeUnavailable, "", "", "native"}},
		"named one is not usable":      {[]api.EngineReport{broken}, rules.Rules{}, operator, "gvisor", "", want{api.CodeUnavailable, "engine", "", "no user namespaces"}},
		"none at all":                  {nil, rules.Rules{}, operator, "", "", want{api.CodeUnavailable, "", "", "doctor"}},
	} {
		t.Run(name, func(t *testing.T) {
			f := policy.Facts{Engines: c.engines}
			p, err := policy.Decide(policy.Request{Spec: api.SandboxSpec{Engine: c.asked}, Facts: f}, c.caller, c.rules)
			if c.engine == "" {
				c.want.check(t, err)
				return
			}
			if err != nil || p.Engine() != c.engine || p.Spec().Engine != c.engine {
				t.Errorf("got %q, %v; want %q", p.Engine(), err, c.engine)
			}
		})
	}
	_, err := policy.Decide(policy.Request{Facts: policy.Facts{Engines: []api.EngineReport{broken}}}, tenant, rules.Rules{})
	if err == nil || strings.Contains(err.Error(), "/proc") {
		t.Errorf("a tenant reads how the host is made: %v", err)
	}
}

func TestImages(t *testing.T) {
	r := mustParse(t, "images: [debian:12, 'ghcr.io/acme/*']\nblocked_images: ['ghcr.io/acme/bad*']\n")
	for ref, want := range map[string]map[string]bool{
		"host":              {"operator": true, "tenant": true},
		"debian:12":         {"operator": true, "tenant": true},
		"debian:123":        {"operator": true, "tenant": false},
		"ghcr.io/acme/a:1":  {"operator": true, "tenant": true},
		"ghcr.io/acmex/a":   {"operator": true, "tenant": false},
		"ghcr.io/acme/bad1": {"operator": false, "tenant": false},
	} {
		for who, c := range map[string]policy.Caller{"operator": operator, "tenant": tenant} {
			_, err := policy.Decide(policy.Request{Spec: api.SandboxSpec{Image: ref}, Facts: facts()}, c, r)
			if (err == nil) != want[who] {
				t.Errorf("%s %s: %v", who, ref, err)
			}
			if err != nil && api.CodeOf(err) != api.CodeDenied {
				t.Errorf("%s %s: code %s", who, ref, api.CodeOf(err))
			}
		}
	}
	_, err := policy.Decide(policy.Request{Spec: api.SandboxSpec{Image: "alpine"}, Facts: facts()}, tenant, rules.Rules{})
	want{code: api.CodeDenied, field: "image", rule: "images", says: "images: [alpine]"}.check(t, err)
	// The default image of a profile is the operator's own choice.
	decide(t, api.SandboxSpec{}, tenant, mustParse(t, "profiles: {agent: {image: 'alpine:3'}}"))
}
