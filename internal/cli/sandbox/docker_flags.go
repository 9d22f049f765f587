package sandbox

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/pflag"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/client"
	"github.com/cloche-dev/cloche/internal/cli/command"
	"github.com/cloche-dev/cloche/internal/cli/image"
	"github.com/cloche-dev/cloche/internal/cli/network"
	"github.com/cloche-dev/cloche/internal/cli/process"
	"github.com/cloche-dev/cloche/internal/terminal"
)

// dockerFlags are flags that Docker's users type, beside those that are visible.
type dockerFlags struct {
	volumes, publish []string
	// opens is whether the command opens the ports of -p.
	opens    bool
	network  string
	envFiles []string
}

func (f *dockerFlags) register(flags *pflag.FlagSet) {
	flags.StringArrayVarP(&f.volumes, "volume", "v", nil, "as --mount")
	flags.StringArrayVarP(&f.publish, "publish", "p", nil, "open this `PORT` of the sandbox as a URL and print it on standard error (repeatable; needs a daemon)")
	flags.StringVar(&f.network, "network", "", "as --net")
	flags.StringArrayVar(&f.envFiles, "env-file", nil, "a `FILE` with lines NAME=VALUE for the environment, or NAME to use its value from this environment (repeatable)")
	for _, name := range []string{"volume", "publish", "network"} {
		_ = flags.MarkHidden(name) // it is there
	}
	command.Workdir(flags)
}

// mounts reads -v. A source that is a name is a volume in Docker, and not a directory.
func (f *dockerFlags) mounts(abs command.Absolute) ([]api.Mount, error) {
	var mounts []api.Mount
	for _, text := range f.volumes {
		src, rest, _ := strings.Cut(text, ":")
		if api.ValidName(src) && !strings.HasPrefix(src, ".") && rest != "" && !command.WindowsPath(text) {
			return nil, api.Invalid("mounts", "-v %q names a volume", terminal.Clip(text)).
				WithHint("--workspace %s:/PATH keeps a directory under a name; a directory of this machine is written -v ./%s", terminal.Clip(src), terminal.Clip(text))
		}
		m, err := command.ParseMount(text, abs)
		if err != nil {
			return nil, err
		}
		mounts = append(mounts, m)
	}
	return mounts, nil
}

// registerPorts is Register for a command that opens the ports of -p.
func (f *SpecFlags) registerPorts(flags *pflag.FlagSet) {
	f.Register(flags)
	f.docker.opens = true
	flags.Lookup("publish").Hidden = false
}

// ports reads -p.
func (f *dockerFlags) ports() ([]int, error) {
	var out []int
	for _, text := range f.publish {
		n, err := network.ParsePort(text)
		if err != nil {
			return nil, err
		}
		out = append(out, n)
	}
	return out, nil
}

// openPorts opens the ports of -p in a sandbox.
func openPorts(ctx context.Context, conn *command.Connection, sandbox string, ports []int) ([]api.OpenedPort, error) {
	var out []api.OpenedPort
	for _, n := range ports {
		opened, err := conn.OpenPort(ctx, sandbox, api.PortSpec{Port: n})
		if err != nil {
			return nil, err
		}
		out = append(out, opened)
	}
	return out, nil
}

// announcePorts prints the URLs of opened ports.
func announcePorts(a *command.CLI, opened []api.OpenedPort) {
	for _, p := range opened {
		a.Note("port %d: %s", p.Port, p.AccessURL)
	}
}

// net returns the requested network: the value of --net, or what --network means.
func (f *dockerFlags) net(given string) (string, error) {
	switch {
	case len(f.publish) > 0 && !f.opens:
		return "", api.Invalid("publish", "-p: this command opens no ports").WithHint("`cloche port open SANDBOX 8000` opens a port of a sandbox as a URL")
	case f.network == "":
		return given, nil
	case given != "" && given != f.network:
		return "", api.Invalid("network", "--net and --network ask for different things").WithHint("give one of them")
	}
	switch f.network {
	case "none", "on":
		return f.network, nil
	case "bridge", "default":
		return api.NetworkOn, nil
	}
	return "", api.Invalid("network", "--network %q: a sandbox has a network of its own, or none", terminal.Clip(f.network)).
		WithHint("write --net none, --net on, or --allow HOST for what it may reach; services of this machine come in by --endpoint")
}

// env is what --env-file and, over it, --env say.
func (f *dockerFlags) env(assignments []string, lookup func(string) (string, bool)) (map[string]string, error) {
	return process.EnvOf(f.envFiles, assignments, lookup)
}

// officialImage is whether a word is the name of an image that Docker's users run.
func officialImage(word string) bool {
	for name := range strings.FieldsSeq(`alpine almalinux amazonlinux archlinux bash buildpack-deps busybox caddy centos clojure
		composer debian docker eclipse-temurin elixir erlang fedora gcc ghcr.io golang gradle haskell hello-world httpd
		julia mariadb maven memcached mongo mysql nginx node openjdk oraclelinux perl php postgres python pypy r-base rabbitmq redis
		rockylinux ruby rust swift traefik ubuntu`) {
		if word == name {
			return true
		}
	}
	return false
}

// runDetached makes a sandbox, starts the command in it and leaves both running.
func runDetached(ctx context.Context, a *command.CLI, req api.RunRequest, f command.ExecFlags, ports []int) (err error) {
	conn, err := runtimeFor(ctx, a, "--detach")
	if err != nil {
		return err
	}
	defer conn.Close()
	v := image.WatchCreate(a, "starting", f.Quiet)
	sb, err := conn.CreateProgress(client.WithPullProgress(ctx, v.Pulling), req.Spec, v.Step)
	v.Stop()
	if err != nil {
		return err
	}
	opened, err := openPorts(ctx, conn, sb.ID, ports)
	if err != nil {
		_, rerr := conn.Delete(context.WithoutCancel(ctx), sb.ID)
		return errors.Join(err, rerr)
	}
	if f.Tty {
		command.GiveTerminal(a, &req.Exec)
	}
	p, err := conn.StartProcess(ctx, sb.ID, api.ProcessSpec{ExecRequest: req.Exec, OpenStdin: f.Interactive})
	if err != nil {
		// Nothing runs in it. It goes also when the user has lost patience.
		_, rerr := conn.Delete(context.WithoutCancel(ctx), sb.ID)
		return errors.Join(err, rerr)
	}
	if a.JSON {
		return a.PrintJSON(struct {
			Sandbox api.Sandbox      `json:"sandbox"`
			Process api.Process      `json:"process"`
			Ports   []api.OpenedPort `json:"ports,omitempty"`
		}{sb.Sandbox, p, opened})
	}
	if !f.Quiet {
		a.WarnGranted(sb.Adjusted, sb.Unenforced)
	}
	if _, err := fmt.Fprintln(a.Stdio.Out, terminal.Printable(sb.Name)); err != nil {
		return command.OutputError(err)
	}
	announcePorts(a, opened)
	return nil
}
