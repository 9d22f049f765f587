//go:build linux

// Package sudo is the program sudo inside a sandbox. No program of a sandbox gets new rights from a file,
// so the machine's own sudo refuses to work there, also for root. This one becomes the command if it is
// started by root. For other users it asks the agent, which starts the command if the sandbox was created
// with sudo.
package sudo

import (
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"github.com/cloche-dev/cloche/internal/agent/guest/identity"
)

// Argv0 is the name by which the agent's executable is this program.
const Argv0 = "sudo"

// command is what the arguments ask for.
type command struct {
	user, group string
	dir         string
	env         []string // of NAME=VALUE arguments
	argv        []string
	keepHome    bool
	login       bool
	shell       bool
	// over says that there is nothing to run: the status is 0.
	over bool
}

var errUsage = errors.New("usage: sudo [-EHins] [-D directory] [-g group] [-u user] [NAME=VALUE] [command [argument...]]")

// parse reads the arguments after the program's name, as sudo's own manual has them.
func parse(args []string) (command, error) {
	c := command{user: "root"}
	for len(args) > 0 {
		arg := args[0]
		if arg == "--" {
			args = args[1:]
			break
		}
		if len(arg) < 2 || arg[0] != '-' {
			break
		}
		args = args[1:]
		if strings.HasPrefix(arg, "--") {
			name, value, has := strings.Cut(arg[2:], "=")
			short, known := longOptions[name]
			if !known {
				return c, fmt.Errorf("option %q is not known\n%w", arg, errUsage)
			}
			if strings.Contains(withValue, short) && !has {
				if len(args) == 0 {
					return c, errUsage
				}
				value, args = args[0], args[1:]
			}
			if err := c.option(short[0], value); err != nil {
				return c, err
			}
			continue
		}
		for i := 1; i < len(arg); i++ {
			if strings.IndexByte(withValue, arg[i]) >= 0 {
				value := arg[i+1:]
				if value == "" {
					if len(args) == 0 {
						return c, errUsage
					}
					value, args = args[0], args[1:]
				}
				if err := c.option(arg[i], value); err != nil {
					return c, err
				}
				break
			}
			if err := c.option(arg[i], ""); err != nil {
				return c, err
			}
		}
	}
	for len(args) > 0 {
		name, _, is := strings.Cut(args[0], "=")
		if !is || name == "" || strings.Contains(name, "/") {
			break
		}
		c.env, args = append(c.env, args[0]), args[1:]
	}
	c.argv = args
	if len(args) == 0 && !c.login && !c.shell && !c.over {
		return c, errUsage
	}
	return c, nil
}

// withValue are the options that have a value.
const withValue = "CDghpRrTtUu"

// longOptions are the long names of options.
var longOptions = map[string]string{ //nolint:gochecknoglobals // a table
	"user": "u", "group": "g", "chdir": "D", "preserve-env": "E", "set-home": "H", "non-interactive": "n", "login": "i", "shell": "s",
	"stdin": "S", "validate": "v", "reset-timestamp": "k", "remove-timestamp": "K", "list": "l", "version": "V", "help": "?", "prompt": "p",
	"background": "b", "askpass": "A", "preserve-groups": "P", "bell": "B",
}

// option takes one option.
func (c *command) option(o byte, value string) error {
	switch o {
	case 'u':
		c.user = strings.TrimPrefix(value, "#")
	case 'g':
		c.group = strings.TrimPrefix(value, "#")
	case 'D':
		c.dir = value
	case 'E':
		c.keepHome = true
	case 'H':
		c.keepHome = false
	case 'i':
		c.login = true
	case 's':
		c.shell = true
	case 'v', 'k', 'K', 'l', 'V':
		c.over = true
	case 'n', 'S', 'A', 'B', 'P', 'p': // no password is asked for
	case '?':
		return errUsage
	default:
		return fmt.Errorf("option -%c is not supported in a sandbox\n%w", o, errUsage)
	}
	return nil
}

// Main runs the command of args, which begin with the program's name, and returns the status to exit with.
func Main(args []string, stderr io.Writer) int {
	c, err := parse(args[1:])
	if err == nil && os.Geteuid() != 0 {
		var status int
		if status, err = c.ask(); err == nil {
			return status
		}
	}
	if err == nil && c.over && len(c.argv) == 0 {
		return 0
	}
	if err == nil {
		err = c.run()
	}
	fmt.Fprintln(stderr, "sudo:", err)
	return 1
}

// run becomes the command.
func (c command) run() error {
	spec := c.user
	if c.group != "" {
		spec += ":" + c.group
	}
	u, err := (&identity.Users{}).Lookup(spec)
	if err != nil {
		return fmt.Errorf("unknown user %s", spec)
	}
	env := c.environ(os.Environ(), u)
	argv, file, err := c.program(env)
	if err != nil {
		return err
	}
	if c.login && c.dir == "" {
		c.dir = u.Home
	}
	if c.dir != "" {
		if err := os.Chdir(c.dir); err != nil {
			return err
		}
	}
	if err := become(u); err != nil {
		return err
	}
	return fmt.Errorf("%s: %w", argv[0], syscall.Exec(file, argv, env))
}

// become gives the process the user.
func become(u identity.User) error {
	groups := make([]int, len(u.Groups))
	for i, g := range u.Groups {
		groups[i] = int(g)
	}
	if u.UID == 0 && u.GID == 0 {
		return nil // it has root's groups
	}
	if err := syscall.Setgroups(groups); err != nil {
		return fmt.Errorf("set groups: %w", err)
	}
	if err := syscall.Setgid(int(u.GID)); err != nil {
		return fmt.Errorf("set group %d: %w", u.GID, err)
	}
	if err := syscall.Setuid(int(u.UID)); err != nil {
		return fmt.Errorf("set user %d: %w", u.UID, err)
	}
	return nil
}

// environ is the environment of the command: the present one, with what belongs to the user.
func (c command) environ(env []string, u identity.User) []string {
	set := func(name, value string) {
		env = slices.DeleteFunc(slices.Clone(env), func(v string) bool { return strings.HasPrefix(v, name+"=") })
		env = append(env, name+"="+value)
	}
	name := c.user
	if name == "0" {
		name = "root"
	}
	set("USER", name)
	set("LOGNAME", name)
	set("SUDO_USER", caller())
	set("SUDO_UID", strconv.Itoa(os.Getuid()))
	set("SUDO_GID", strconv.Itoa(os.Getgid()))
	if !c.keepHome && u.Home != "" {
		set("HOME", u.Home)
	}
	for _, v := range c.env {
		name, value, _ := strings.Cut(v, "=")
		set(name, value)
	}
	return env
}

// caller is the name of the user of this program, or its number.
func caller() string {
	if os.Getuid() == 0 {
		return "root"
	}
	return identity.NameOf(uint32(os.Getuid()))
}

// program is the command line to execute, and its file.
func (c command) program(env []string) (argv []string, file string, err error) {
	if c.login || c.shell {
		file = "/bin/sh"
		if i := slices.IndexFunc(env, func(v string) bool { return strings.HasPrefix(v, "SHELL=/") }); i >= 0 {
			file = strings.TrimPrefix(env[i], "SHELL=")
		}
		argv = []string{file}
		if c.login {
			argv[0] = "-" + file[strings.LastIndexByte(file, '/')+1:]
		}
		if len(c.argv) > 0 {
			argv = append(argv, "-c", quoted(c.argv))
		}
		return argv, file, nil
	}
	if file, err = exec.LookPath(c.argv[0]); err != nil {
		return nil, "", notFound(c.argv[0])
	}
	return c.argv, file, nil
}

func notFound(name string) error { return fmt.Errorf("%s: command not found", name) }

// quoted is a command line for a shell, each of whose words is one of argv.
func quoted(argv []string) string {
	words := make([]string, len(argv))
	for i, a := range argv {
		words[i] = "'" + strings.ReplaceAll(a, "'", `'\''`) + "'"
	}
	return strings.Join(words, " ")
}
