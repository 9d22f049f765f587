package image

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/moby/patternmatcher"
	"github.com/moby/patternmatcher/ignorefile"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/archive/localdir"
	"github.com/cloche-dev/cloche/internal/cli/command"
	"github.com/cloche-dev/cloche/internal/cli/network"
	"github.com/cloche-dev/cloche/internal/terminal"
)

// maxBuildText bounds a Dockerfile, a .dockerignore and a secret.
const maxBuildText = 1 << 20

// buildFlags are the flags of "image build", as they were typed.
type buildFlags struct {
	file, target, from         string
	args, labels, secrets      []string
	apt, pip, npm              []string
	profile, engine, net       string
	memory, disk, tmp, timeout string
	cpus                       float64
	sandboxSecrets, endpoints  []string
	noCache, quiet             bool
	egress                     network.EgressFlags
}

func (f *buildFlags) register(flags *pflag.FlagSet) {
	flags.StringVarP(&f.file, "file", "f", "", "the Dockerfile (default: Dockerfile in the directory); - is standard input")
	flags.StringVar(&f.target, "target", "", "build this stage of the Dockerfile, a `NAME` or number")
	flags.StringArrayVar(&f.args, "build-arg", nil, "the value of an ARG, `NAME=VALUE`, or NAME to use its value from this environment (repeatable)")
	flags.StringArrayVar(&f.secrets, "secret", nil, "a secret for RUN --mount=type=secret, `id=ID[,src=FILE|,env=NAME]` (repeatable)")
	flags.StringArrayVarP(&f.labels, "label", "l", nil, "a label of the image, `KEY=VALUE` (repeatable)")
	flags.BoolVar(&f.noCache, "no-cache", false, "run every step, even if its layer is cached")
	flags.StringVar(&f.from, "from", "", "instead of a Dockerfile: the `IMAGE` to install packages into (default "+api.DefaultImage+")")
	flags.StringSliceVar(&f.apt, "apt", nil, "install `PACKAGES` with apt-get (repeatable)")
	flags.StringSliceVar(&f.pip, "pip", nil, "install `PACKAGES` with pip (repeatable)")
	flags.StringSliceVar(&f.npm, "npm", nil, "install `PACKAGES` with npm (repeatable)")
	flags.StringVar(&f.profile, "profile", "", "the profile of the build's sandboxes (default "+api.DefaultProfile+")")
	flags.StringVar(&f.engine, "engine", "", "the engine of the build's sandboxes (default auto)")
	flags.StringVar(&f.net, "net", "", "the network of the steps, `none|on` (default the profile's, or on with --allow)")
	f.egress.Register(flags)
	flags.StringArrayVar(&f.sandboxSecrets, "sandbox-secret", nil, "a secret of the daemon by name, as with \"cloche run --secret\" (repeatable)")
	flags.StringArrayVar(&f.endpoints, "endpoint", nil, network.EndpointUsage)
	flags.StringVarP(&f.memory, "memory", "m", "", "memory limit of a step, a `SIZE` such as 4GiB")
	flags.StringVar(&f.disk, "disk", "", "limit of what the steps of a stage write, a `SIZE` such as 10GiB")
	flags.StringVar(&f.tmp, "tmp", "", "size of /tmp, in memory, a `SIZE` such as 1GiB")
	flags.Float64Var(&f.cpus, "cpus", 0, "CPU limit, a number of `CORES`")
	flags.StringVar(&f.timeout, "timeout", "", "kill a step after this `duration`, such as 30m")
	flags.BoolVarP(&f.quiet, "quiet", "q", false, "print the image only")
}

func imageBuildCommand(a *command.CLI) *cobra.Command {
	var f buildFlags
	c := &cobra.Command{
		Use:   "build [flags] NAME [DIRECTORY]",
		Short: "Build an image from a Dockerfile or a list of packages",
		Long: `Build an image. Each step of the Dockerfile runs in a sandbox, and what it
changes is kept as a layer. A step whose layer is in the cache doesn't run again.
DIRECTORY has the files that COPY and ADD copy; a .dockerignore leaves some out.

Without a Dockerfile, --apt, --pip and --npm install packages into the image of
--from. Steps have the network and the egress rules of the flags, as in "cloche
run". "image prune" also removes layers of builds.`,
		Example: `  cloche image build --allow @pypi,deb.debian.org app:1 .
  cloche image build --from host --pip numpy,pandas --allow @pypi science
  cloche image build --secret id=npmrc,src=$HOME/.npmrc --target test app:test .`,
		Args: command.Between(1, 2, "a name and a directory"),
		RunE: func(c *cobra.Command, args []string) error {
			dir := ""
			if len(args) == 2 {
				dir = args[1]
			}
			req, err := f.request(c.Flags().Changed, args[0], dir, a)
			if err != nil {
				return err
			}
			return command.WithLocalDaemon(a, c, func(ctx context.Context, conn *command.Connection) error {
				return buildImage(ctx, a, conn, f.quiet, req, dir)
			})
		},
	}
	f.register(c.Flags())
	return c
}

// request makes the request of the flags.
func (f *buildFlags) request(set func(string) bool, name, dir string, a *command.CLI) (req api.ImageBuildRequest, err error) {
	req = api.ImageBuildRequest{Name: name, Target: f.target, NoCache: f.noCache}
	lists := len(f.apt)+len(f.pip)+len(f.npm) > 0
	switch {
	case lists && (dir != "" || f.file != ""):
		return req, api.Invalid("packages", "a list of packages is built without a Dockerfile").WithHint("leave the directory and --file out")
	case lists:
		req.Packages = &api.ImagePackages{From: f.from, Apt: f.apt, Pip: f.pip, Npm: f.npm}
	case f.from != "":
		return req, api.Invalid("packages", "--from needs packages").WithHint("add --apt, --pip or --npm, or write FROM into a Dockerfile")
	case dir == "" && f.file == "":
		return req, api.Invalid("dockerfile", "there is nothing to build from").WithHint("name the directory with the Dockerfile, such as `.`, or give --pip, --apt or --npm")
	default:
		if req.Dockerfile, err = f.dockerfile(dir, a.Stdio.In); err != nil {
			return req, err
		}
	}
	if req.Args, err = command.ParseEnv(f.args, os.LookupEnv); err != nil {
		return req, err
	}
	if req.Labels, err = command.ParseLabels("--label", f.labels); err != nil {
		return req, err
	}
	for _, text := range f.secrets {
		s, err := parseSecret(text)
		if err != nil {
			return req, err
		}
		req.Secrets = append(req.Secrets, s)
	}
	req.Sandbox, err = f.sandbox(set)
	return req, err
}

func (f *buildFlags) dockerfile(dir string, in io.Reader) (string, error) {
	if f.file == "-" {
		text, err := io.ReadAll(io.LimitReader(in, maxBuildText+1))
		return string(text), err
	}
	name := f.file
	if name == "" {
		name = filepath.Join(dir, "Dockerfile")
	}
	text, err := readBounded(name)
	if err != nil {
		return "", localdir.Error("read", name, err)
	}
	return string(text), nil
}

func readBounded(name string) ([]byte, error) {
	f, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, maxBuildText+1))
	if err == nil && len(data) > maxBuildText {
		err = fmt.Errorf("it has more than %d bytes", maxBuildText)
	}
	return data, err
}

// parseSecret reads the value of a secret where its flag says.
func parseSecret(text string) (api.BuildSecret, error) {
	var s api.BuildSecret
	var src, env string
	for part := range strings.SplitSeq(text, ",") {
		key, value, _ := strings.Cut(part, "=")
		switch key {
		case "id":
			s.ID = value
		case "src", "source":
			src = value
		case "env":
			env = value
		case "type":
		default:
			return s, api.Invalid("secrets", "--secret %.60q has no part %.20q", text, key).WithHint("write id=ID,src=FILE or id=ID,env=NAME")
		}
	}
	if s.ID == "" || src != "" && env != "" {
		return s, api.Invalid("secrets", "--secret %.60q is not complete", text).WithHint("write id=ID,src=FILE or id=ID,env=NAME")
	}
	if src != "" {
		data, err := readBounded(src)
		if err != nil {
			return s, localdir.Error("read", src, err)
		}
		s.Value = data
		return s, nil
	}
	if env == "" {
		env = s.ID
	}
	value, ok := os.LookupEnv(env)
	if !ok {
		return s, api.Invalid("secrets", "the variable %.60s, which is the secret %.60s, is not set", env, s.ID)
	}
	s.Value = api.Bytes(value)
	return s, nil
}

// sandbox makes the settings of the build's sandboxes.
func (f *buildFlags) sandbox(set func(string) bool) (s api.BuildSandbox, err error) {
	s = api.BuildSandbox{Profile: f.profile, Engine: f.engine, Network: f.net, Limits: api.Limits{CPUs: f.cpus}}
	if s.Egress, err = f.egress.Egress(); err != nil {
		return s, err
	}
	for _, text := range f.sandboxSecrets {
		use, err := command.ParseSecret(text)
		if err != nil {
			return s, err
		}
		s.Secrets = append(s.Secrets, use)
	}
	if s.Endpoints, err = network.ParseEndpoints(f.endpoints); err != nil {
		return s, err
	}
	for _, size := range []struct {
		flag, field, text string
		to                *int64
	}{
		{"memory", "limits.memory_bytes", f.memory, &s.Limits.MemoryBytes},
		{"disk", "limits.disk_bytes", f.disk, &s.Limits.DiskBytes},
		{"tmp", "limits.tmp_bytes", f.tmp, &s.Limits.TmpBytes},
	} {
		if !set(size.flag) {
			continue
		}
		if *size.to, err = command.ParseSize("--"+size.flag, size.field, size.text); err != nil {
			return s, err
		}
	}
	if set("timeout") {
		s.Limits.TimeoutMS, err = command.ParseTimeout("--timeout", "limits.timeout_ms", f.timeout)
	}
	return s, err
}

// buildImage sends the files of a directory, and shows the steps.
func buildImage(ctx context.Context, a *command.CLI, conn *command.Connection, quiet bool, req api.ImageBuildRequest, dir string) error {
	v := &buildView{a: a, quiet: quiet}
	var files io.Reader
	if dir != "" {
		skip, prune, err := ignored(dir)
		if err != nil {
			return err
		}
		r, w := io.Pipe()
		packed := make(chan struct{})
		go func() { // ends with the build, which closes r
			defer close(packed)
			var report api.TarReport
			w.CloseWithError(localdir.PackWhere(w, dir, skip, prune, &report))
		}()
		defer func() { _ = r.Close(); <-packed }()
		files = r
	}
	img, err := conn.BuildImage(ctx, req, files, v.tell)
	v.stop()
	if err != nil {
		return err
	}
	if a.JSON {
		return a.PrintJSON(img)
	}
	_, err = fmt.Fprintf(a.Stdio.Out, "%s %s\n", terminal.Printable(img.Name), terminal.Printable(img.Digest))
	return err
}

// ignored says what .dockerignore leaves out, and whether whole directories can be left out.
func ignored(dir string) (skip func(string) bool, prune bool, err error) {
	none := func(string) bool { return false }
	text, err := readBounded(filepath.Join(dir, ".dockerignore"))
	if errors.Is(err, os.ErrNotExist) {
		return none, true, nil
	}
	if err != nil {
		return nil, false, localdir.Error("read", ".dockerignore", err)
	}
	patterns, err := ignorefile.ReadAll(strings.NewReader(string(text)))
	if err != nil {
		return nil, false, api.Invalid("context", ".dockerignore cannot be read").WithCause(err)
	}
	m, err := patternmatcher.New(slices.DeleteFunc(patterns, func(p string) bool { return p == "" }))
	if err != nil {
		return nil, false, api.Invalid("context", ".dockerignore: %v", err)
	}
	return func(name string) bool {
		ok, err := m.MatchesOrParentMatches(name)
		return err == nil && ok
	}, !m.Exclusions(), nil
}

// buildView shows the events of a build on stderr, as lines.
type buildView struct {
	a     *command.CLI
	quiet bool
	pull  *createView
	// midLine: the program's output has not ended its line.
	midLine bool
}

func (v *buildView) tell(e api.BuildEvent) error {
	if v.quiet || v.a.JSON {
		return nil
	}
	out := v.a.Stdio.Err
	switch {
	case e.Step != nil:
		v.stop()
		mark := ""
		if e.Step.Cached {
			mark = "CACHED "
		}
		text, _, more := strings.Cut(e.Step.Text, "\n")
		if more {
			text += " …"
		}
		stage := ""
		if e.Step.Stage != "" {
			stage = terminal.Printable(e.Step.Stage) + " "
		}
		_, err := fmt.Fprintf(out, "[%s%d/%d] %s%s\n", stage, e.Step.Number, e.Step.Total, mark, terminal.Printable(text))
		return err
	case len(e.Data) > 0:
		v.midLine = e.Data[len(e.Data)-1] != '\n'
		_, err := out.Write(e.Data)
		return err
	case e.Warning != "":
		v.stop()
		v.a.Warn("%s", e.Warning)
	case e.Pull != nil:
		if v.pull == nil {
			v.pull = WatchCreate(v.a, "pulling", v.quiet)
		}
		v.pull.Pulling(*e.Pull)
	}
	return nil
}

// stop ends a line of output, and the view of a pull.
func (v *buildView) stop() {
	if v.pull != nil {
		v.pull.Stop()
		v.pull = nil
	}
	if v.midLine {
		fmt.Fprintln(v.a.Stdio.Err)
		v.midLine = false
	}
}

func imageCommitCommand(a *command.CLI) *cobra.Command {
	var argv, env []string
	var user, dir string
	c := &cobra.Command{
		Use:   "commit [flags] SANDBOX NAME",
		Short: "Make an image of a running sandbox",
		Long: `Make an image of a sandbox: its image, and what differs from it in the root and
in /tmp. Mounts and the workspace are in no image. Programs go on, so commit while
none changes files.`,
		Example: "  cloche image commit box tools:1\n  cloche image commit --cmd python3 --cmd app.py box app:1",
		Args:    command.Exactly(2, "a sandbox and a name"),
		RunE: func(c *cobra.Command, args []string) error {
			req := api.ImageCommitRequest{Name: args[1]}
			if len(argv)+len(env) > 0 || user != "" || dir != "" {
				req.Config = &api.ImageConfig{Cmd: argv, Env: env, User: user, WorkingDir: dir}
			}
			return a.WithDaemon(c, func(ctx context.Context, conn *command.Connection) error {
				return makeImage(ctx, a, true, "committing", func(ctx context.Context) (api.Image, error) {
					return conn.CommitImage(ctx, args[0], req)
				})
			})
		},
	}
	registerConfig(c.Flags(), &argv, &env, &user, &dir)
	return c
}

func imageExportCommand(a *command.CLI) *cobra.Command {
	var output string
	c := &cobra.Command{
		Use:        "export [flags] IMAGE",
		Aliases:    []string{"save"},
		SuggestFor: []string{"push"},
		Short:      "Write an image to a file that Docker and Podman load",
		Long: `Write an image to a tar that is an OCI layout and an archive of Docker. Its files
are one layer.`,
		Example: "  cloche image export app:1 | docker load\n  cloche image export -o app.tar app:1",
		Args:    command.Exactly(1, "one image"),
		RunE: func(c *cobra.Command, args []string) error {
			return command.WithLocalDaemon(a, c, func(ctx context.Context, conn *command.Connection) error {
				ref, err := imageRef(ctx, conn, args[0])
				if err != nil {
					return err
				}
				if output == "" {
					return conn.ExportImage(ctx, ref, a.Stdio.Out)
				}
				f, err := os.CreateTemp(filepath.Dir(output), ".cloche-*")
				if err != nil {
					return localdir.Error("write", output, err)
				}
				err = errors.Join(conn.ExportImage(ctx, ref, f), f.Chmod(0o644), f.Close())
				if err == nil {
					err = os.Rename(f.Name(), output)
				}
				if err != nil {
					_ = os.Remove(f.Name())
				}
				return err
			})
		},
	}
	c.Flags().StringVarP(&output, "output", "o", "", "write to this `FILE` instead of standard output")
	return c
}

// registerConfig adds the flags of an image's configuration.
func registerConfig(flags *pflag.FlagSet, argv, env *[]string, user, dir *string) {
	flags.StringArrayVar(argv, "cmd", nil, "an `ARGUMENT` of the default command (repeatable)")
	flags.StringArrayVar(env, "env", nil, "`NAME=VALUE` for every process (repeatable)")
	flags.StringVar(user, "user", "", "the user of its processes, `NAME|UID[:GID]`")
	flags.StringVar(dir, "workdir", "", "the working directory, a `PATH`")
}
