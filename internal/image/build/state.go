package build

import (
	"errors"
	"maps"
	"path"
	"slices"
	"strings"

	"github.com/cloche-dev/cloche/api"
)

// State is what the steps of a stage set beside files.
type State struct {
	Config api.ImageConfig
	// Shell runs the shell form of RUN, CMD and ENTRYPOINT.
	Shell []string
	// Args are the declared arguments with a value.
	Args map[string]string

	// given are the arguments of the request, and global those before the first FROM.
	given, global map[string]string
}

// clone is the configuration, which shares nothing with the state.
func (s *State) clone() api.ImageConfig {
	c := s.Config
	c.Env, c.Cmd, c.Entrypoint = slices.Clone(c.Env), slices.Clone(c.Cmd), slices.Clone(c.Entrypoint)
	c.Labels = maps.Clone(c.Labels)
	return c
}

// Cwd is the working directory.
func (s *State) Cwd() string {
	if s.Config.WorkingDir == "" {
		return "/"
	}
	return s.Config.WorkingDir
}

// Path is a path of an instruction as an absolute one.
func (s *State) Path(p string) string {
	if path.IsAbs(p) {
		return path.Clean(p)
	}
	return path.Join("/", s.Cwd(), p)
}

// SetEnv sets a variable of the image.
func (s *State) SetEnv(name, value string) {
	line := name + "=" + value
	if i := slices.IndexFunc(s.Config.Env, func(l string) bool { return strings.HasPrefix(l, name+"=") }); i >= 0 {
		s.Config.Env[i] = line
		return
	}
	s.Config.Env = append(s.Config.Env, line)
}

func (s *State) label(name, value string) {
	if s.Config.Labels == nil {
		s.Config.Labels = map[string]string{}
	}
	s.Config.Labels[name] = value
}

// env is the environment of a program of the build: the arguments, and over them the variables.
func (s *State) env() map[string]string {
	env := maps.Clone(s.Args)
	for _, line := range s.Config.Env {
		if name, value, ok := strings.Cut(line, "="); ok {
			env[name] = value
		}
	}
	return env
}

// Get and Keys implement shell.EnvGetter.
func (s *State) Get(name string) (string, bool) {
	v, ok := s.env()[name]
	return v, ok
}

// Keys returns the names of all variables.
func (s *State) Keys() []string { return slices.Collect(maps.Keys(s.env())) }

// errorOf finds the error of the API in err.
func errorOf(err error) (*api.Error, bool) { return errors.AsType[*api.Error](err) }
