package sandbox

import (
	"io"
	"os"
	"runtime"

	"github.com/spf13/pflag"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/archive/localdir"
	"github.com/cloche-dev/cloche/internal/cli/command"
	"github.com/cloche-dev/cloche/internal/cli/network"
	"github.com/cloche-dev/cloche/internal/cli/skill"
	"github.com/cloche-dev/cloche/internal/cli/workspace"
	"github.com/cloche-dev/cloche/internal/terminal"
)

// maxFlagFiles bounds the content of all --file flags together: it is sent in
// one request. Larger things go by "cloche cp" or a mount.
const maxFlagFiles = 16 << 20

// SpecFlags are the flags that "run" and "create" share, as they were typed.
type SpecFlags struct {
	name, profile, image, engine, net string
	key                               string
	pull                              string
	user, cwd                         string
	memory, disk, timeout, maxOutput  string
	cpus                              float64
	pids                              int64
	env, mounts, files, labels        []string
	secrets, skills                   []string
	rules                             []string
	endpoints                         []string
	tmp, shm                          string
	workspace                         workspace.WorkspaceFlags
	lifetime, idle, onExpiry          string
	persistent, transient, readOnly   bool
	autoResume                        bool
	sudo                              bool
	snapshot                          string
	layered                           bool
	naming                            command.NamingFlags
	egress                            network.EgressFlags
	docker                            dockerFlags
}

// Register adds the flags.
func (f *SpecFlags) Register(flags *pflag.FlagSet) {
	flags.StringVar(&f.name, "name", "", "the sandbox's `NAME`; the daemon chooses one when it is not given")
	f.naming.Register(flags)
	flags.StringVar(&f.profile, "profile", "", "defaults and ceilings (default "+api.DefaultProfile+")")
	flags.StringVar(&f.image, "image", "", "the root filesystem (default "+api.DefaultImage+", this machine's own tools)")
	flags.StringVar(&f.pull, "pull", "", "when to pull the image: missing, never or always (default missing)")
	flags.StringVar(&f.engine, "engine", "", "the engine (default auto)")
	flags.StringVar(&f.net, "net", "", "the network, `none|on` (default the profile's, or on with --allow)")
	f.egress.Register(flags)
	flags.StringArrayVar(&f.endpoints, "endpoint", nil, network.EndpointUsage)
	flags.StringArrayVarP(&f.env, "env", "e", nil, "`NAME=VALUE` for the environment, or NAME to use its value from this environment (repeatable)")
	flags.StringArrayVar(&f.secrets, "secret", nil, "a secret by name, `NAME[=ENV][:placeholder|env]`; ENV is the variable inside (repeatable)")
	flags.StringArrayVar(&f.mounts, "mount", nil, "a directory of this machine, `SRC:DST[:ro]` (repeatable)")
	flags.StringArrayVar(&f.rules, "rule", nil, "a rule for a path in a mount or the workspace, `PATH:none|ro|rw`, PATH as inside (repeatable)")
	flags.StringArrayVar(&f.skills, "skill", nil, skill.SkillUsage)
	f.workspace.Register(flags)
	flags.BoolVar(&f.layered, "layered", false, "hold changes of the workspace until \"cloche commit\" or \"cloche rollback\"")
	flags.StringVar(&f.snapshot, "snapshot", "", "start with the files of this snapshot, a `NAME` or an id")
	flags.StringArrayVar(&f.files, "file", nil, "a file to copy in before anything runs, `SRC:DST` (repeatable)")
	flags.BoolVar(&f.readOnly, "read-only", false, "only the workspace, writable mounts, /tmp and /dev/shm are writable; HOME is below /tmp")
	flags.StringVarP(&f.memory, "memory", "m", "", "memory limit, a `SIZE` such as 512m or 2GiB")
	flags.Float64Var(&f.cpus, "cpus", 0, "CPU limit, a number of `CORES` such as 0.5")
	flags.Int64Var(&f.pids, "pids", 0, "limit of processes and threads, a `NUMBER`")
	flags.StringVar(&f.disk, "disk", "", "limit of the root filesystem and a private workspace together, a `SIZE` such as 4GiB")
	flags.StringVar(&f.tmp, "tmp", "", "size of /tmp, in memory, a `SIZE` such as 256m")
	flags.StringVar(&f.shm, "shm", "", "size of /dev/shm, in memory, a `SIZE` such as 64m")
	flags.StringVar(&f.timeout, "timeout", "", "kill a command after this `duration`, such as 90s or 1h; 0 is unlimited")
	flags.StringVar(&f.maxOutput, "max-output", "", "keep this much of each output stream of a command, a `SIZE` such as 4MiB (default 1MiB)")
	flags.StringVarP(&f.user, "user", "u", "", "the user inside, `NAME|UID[:GID]`")
	flags.BoolVar(&f.sudo, "sudo", false, "let commands of other users than root run commands as root, with sudo")
	flags.StringVarP(&f.cwd, "cwd", "w", "", "the working directory inside, a `PATH` (default: the workspace)")
	flags.StringVar(&f.lifetime, "lifetime", "", "end the sandbox this `duration` after its start, such as 8h")
	flags.StringVar(&f.idle, "idle", "", "end the sandbox after this `duration` without use, such as 10m")
	flags.BoolVar(&f.persistent, "persistent", true, "keep it running when the daemon shuts down; =false stops it")
	flags.BoolVar(&f.transient, "transient", false, "remove it, with all its files, when its lease ends (needs --idle)")
	flags.StringVar(&f.onExpiry, "on-expiry", "", "what the end of --idle or --lifetime does, `stop|suspend` (default stop)")
	flags.BoolVar(&f.autoResume, "auto-resume", false, "resume it by its next use when it is suspended")
	flags.StringArrayVarP(&f.labels, "label", "l", nil, "a label, `KEY=VALUE` (repeatable)")
	f.docker.register(flags)
}

// Spec makes the request. set tells whether a flag was given at all: a limit of
// 0 that was typed is refused here, since on the wire it means "the default".
func (f *SpecFlags) Spec(set func(string) bool, abs command.Absolute, lookup func(string) (string, bool)) (api.SandboxSpec, error) {
	s := api.SandboxSpec{
		Name: f.name, IdempotencyKey: f.key, Profile: f.profile, Image: f.image, Engine: f.engine, Network: f.net, User: f.user, Cwd: f.cwd,
	}
	s.Snapshot = f.snapshot
	s.Transient, s.Sudo, s.Pull = f.transient, f.sudo, api.PullPolicy(f.pull)
	s.OnExpiry, s.AutoResume = api.Expiry(f.onExpiry), f.autoResume
	if set("persistent") {
		s.Persistent = &f.persistent
	}
	if set("read-only") {
		s.ReadOnlyRoot = &f.readOnly
	}
	var err error
	if s.Network, err = f.docker.net(f.net); err != nil {
		return s, err
	}
	err = command.CheckText("spec", f.name, f.profile, f.image, f.pull, f.engine, f.net, f.user, f.cwd, f.snapshot)
	if err != nil {
		return s, err
	}
	if s.Naming, err = f.naming.Naming(); err != nil {
		return s, err
	}
	if s.Egress, err = f.egress.Egress(); err != nil {
		return s, err
	}
	if s.Limits, err = f.limits(set); err != nil {
		return s, err
	}
	if s.Env, err = f.docker.env(f.env, lookup); err != nil {
		return s, err
	}
	for _, text := range f.secrets {
		use, err := command.ParseSecret(text)
		if err != nil {
			return s, err
		}
		s.Secrets = append(s.Secrets, use)
	}
	if s.Labels, err = command.ParseLabels("--label", f.labels); err != nil {
		return s, err
	}
	if s.Endpoints, err = network.ParseEndpoints(f.endpoints); err != nil {
		return s, err
	}
	if s.Mounts, err = f.docker.mounts(abs); err != nil {
		return s, err
	}
	for _, text := range f.mounts {
		m, err := command.ParseMount(text, abs)
		if err != nil {
			return s, err
		}
		s.Mounts = append(s.Mounts, m)
	}
	for _, text := range f.skills {
		use, err := skill.ParseSkill(text)
		if err != nil {
			return s, err
		}
		s.Skills = append(s.Skills, use)
	}
	if s.Workspace, err = f.workspace.Spec(set, abs); err != nil {
		return s, err
	}
	if f.layered {
		if s.Workspace == nil {
			s.Workspace = &api.Workspace{}
		}
		s.Workspace.Layered = true
	}
	if err := applyRules(&s, f.rules); err != nil {
		return s, err
	}
	s.Files, err = readFiles(f.files)
	return s, err
}

func (f *SpecFlags) limits(set func(string) bool) (l api.Limits, err error) {
	for _, size := range []struct {
		flag, field, text string
		to                *int64
	}{
		{"memory", "limits.memory_bytes", f.memory, &l.MemoryBytes},
		{"disk", "limits.disk_bytes", f.disk, &l.DiskBytes},
		{"tmp", "limits.tmp_bytes", f.tmp, &l.TmpBytes},
		{"shm", "limits.shm_bytes", f.shm, &l.ShmBytes},
		{"max-output", "limits.max_output_bytes", f.maxOutput, &l.MaxOutputBytes},
	} {
		if !set(size.flag) {
			continue
		}
		if *size.to, err = command.ParseSize("--"+size.flag, size.field, size.text); err != nil {
			return l, err
		}
	}
	if set("timeout") {
		if l.TimeoutMS, err = command.ParseTimeout("--timeout", "limits.timeout_ms", f.timeout); err != nil {
			return l, err
		}
	}
	if err := f.lease(set, &l); err != nil {
		return l, err
	}
	if set("cpus") && !(f.cpus > 0) {
		return l, api.Invalid("limits.cpus", "--cpus %v is not more than 0", f.cpus).WithHint("give a number of cores such as 0.5 or 2")
	}
	if set("pids") && f.pids <= 0 {
		return l, api.Invalid("limits.pids", "--pids %d is not more than 0", f.pids).WithHint("give a number of processes such as 256")
	}
	l.CPUs, l.Pids = f.cpus, f.pids
	return l, nil
}

// lease reads how long the sandbox may live. On the wire 0 means "the profile's
// default", so one that was typed is refused.
func (f *SpecFlags) lease(set func(string) bool, l *api.Limits) (err error) {
	for _, d := range []struct {
		flag, field, text string
		to                *int64
	}{
		{"lifetime", "limits.lifetime_ms", f.lifetime, &l.LifetimeMS},
		{"idle", "limits.idle_ms", f.idle, &l.IdleMS},
	} {
		if !set(d.flag) {
			continue
		}
		if *d.to, err = command.ParseTimeout("--"+d.flag, d.field, d.text); err != nil {
			return err
		}
		if *d.to == 0 {
			return api.Invalid(d.field, "--%s is 0, which is no time at all", d.flag).WithHint("give a duration such as 10m, or leave it out for the profile's default")
		}
	}
	return nil
}

// readFiles reads what --file names.
func readFiles(assignments []string) ([]api.File, error) {
	var files []api.File
	left := int64(maxFlagFiles)
	for _, text := range assignments {
		src, dst, err := command.SplitFile(text)
		if err != nil {
			return nil, err
		}
		file, err := readFlagFile(src, left)
		if err != nil {
			return nil, err
		}
		left -= int64(len(file.Content))
		file.Path = dst
		files = append(files, file)
	}
	return files, nil
}

func readFlagFile(src string, left int64) (api.File, error) {
	info, err := os.Stat(src)
	if err != nil {
		return api.File{}, localdir.Error("read", src, err)
	}
	if info.IsDir() {
		return api.File{}, api.Invalid("files", "--file: %s is a directory", terminal.Printable(src)).WithHint(`mount it with --mount, or copy it with "cloche cp"`)
	}
	f, err := os.Open(src)
	if err != nil {
		return api.File{}, localdir.Error("read", src, err)
	}
	defer f.Close()
	content, err := io.ReadAll(io.LimitReader(f, left+1))
	if err != nil {
		return api.File{}, localdir.Error("read", src, err)
	}
	if int64(len(content)) > left {
		return api.File{}, api.Errorf(api.CodeTooLarge, "--file: the files are more than %s together", command.FormatSize(maxFlagFiles)).
			WithHint(`mount their directory with --mount, or copy them with "cloche cp"`)
	}
	file := api.File{Content: content}
	if runtime.GOOS != "windows" {
		file.Mode = uint32(info.Mode().Perm())
	}
	return file, nil
}
