package build

import (
	"bytes"
	"fmt"
	"maps"
	"path"
	"runtime"
	"slices"
	"strconv"
	"strings"

	"github.com/moby/buildkit/frontend/dockerfile/instructions"
	"github.com/moby/buildkit/frontend/dockerfile/parser"
	"github.com/moby/buildkit/frontend/dockerfile/shell"

	"github.com/cloche-dev/cloche/api"
)

// Scratch is the base without files.
const Scratch = "scratch"

// MaxDockerfile bounds a Dockerfile.
const MaxDockerfile = 1 << 20

// maxSteps bounds the steps of a build.
const maxSteps = 1000

// Plan is a build: stages, of which Target becomes the image.
type Plan struct {
	Stages []*Stage
	Target int
	// Args are the arguments before the first stage.
	Args map[string]string
}

// Stage begins with an image, with a stage before it (BaseStage, or -1), or with no files.
type Stage struct {
	Name, Base string
	BaseStage  int
	Steps      []Step
	// Text is its FROM, and Line where that is.
	Text string
	Line int
	// from are the stages that it copies from.
	from []int
}

// Step is an instruction.
type Step struct {
	Text string
	Line int
	// Force runs it although its layer is cached.
	Force bool
	// Resolve applies it to the state. It returns what is to be done to files, or nil.
	Resolve func(*State) (Op, error)
}

// Dockerfile parses a Dockerfile. target is the name or the index of a stage; empty is the last.
func Dockerfile(text []byte, target string, args map[string]string) (*Plan, error) {
	if len(text) > MaxDockerfile {
		return nil, api.Errorf(api.CodeTooLarge, "the Dockerfile has more than %d bytes", MaxDockerfile)
	}
	ast, err := parser.Parse(bytes.NewReader(text))
	if err != nil {
		return nil, badDockerfile(err)
	}
	stages, meta, err := instructions.Parse(ast.AST, nil)
	if err != nil {
		return nil, badDockerfile(err)
	}
	p := &planner{lex: shell.NewLex(ast.EscapeToken), plan: &Plan{Args: map[string]string{}, Target: len(stages) - 1}}
	if err := p.meta(meta, args); err != nil {
		return nil, badDockerfile(err)
	}
	total := 0
	for i := range stages {
		st, err := p.stage(stages[i])
		if err != nil {
			return nil, badDockerfile(err)
		}
		if total += len(st.Steps); total > maxSteps {
			return nil, api.Errorf(api.CodeTooLarge, "the Dockerfile has more than %d instructions", maxSteps)
		}
		p.plan.Stages = append(p.plan.Stages, st)
	}
	if target == "" {
		return p.plan, nil
	}
	i, ok := p.plan.find(target)
	if !ok {
		return nil, api.Invalid("target", "the Dockerfile has no stage %.60q", target)
	}
	p.plan.Target = i
	return p.plan, nil
}

func badDockerfile(err error) error {
	if e, ok := errorOf(err); ok {
		return e
	}
	return api.Invalid("dockerfile", "%.500s", err.Error()).WithCause(err)
}

// find returns a stage by its name or its index.
func (p *Plan) find(name string) (int, bool) {
	for i := len(p.Stages) - 1; i >= 0; i-- {
		if p.Stages[i].Name != "" && strings.EqualFold(p.Stages[i].Name, name) {
			return i, true
		}
	}
	i, err := strconv.Atoi(name)
	return i, err == nil && i >= 0 && i < len(p.Stages)
}

// needed marks the stages that the target is made of.
func (p *Plan) needed() ([]bool, error) {
	needed := make([]bool, len(p.Stages))
	todo := []int{p.Target}
	for len(todo) > 0 {
		i := todo[0]
		todo = todo[1:]
		if i < 0 || i >= len(p.Stages) {
			return nil, api.Invalid("target", "the build has no stage %d", i)
		}
		if needed[i] {
			continue
		}
		needed[i] = true
		todo = append(todo, p.Stages[i].from...)
		if p.Stages[i].BaseStage >= 0 {
			todo = append(todo, p.Stages[i].BaseStage)
		}
	}
	return needed, nil
}

// planner turns parsed stages into a plan.
type planner struct {
	lex  *shell.Lex
	plan *Plan
}

// platformArgs are the arguments that every Dockerfile can declare.
func platformArgs() map[string]string {
	p := "linux/" + runtime.GOARCH
	return map[string]string{
		"BUILDPLATFORM": p, "BUILDOS": "linux", "BUILDARCH": runtime.GOARCH, "BUILDVARIANT": "",
		"TARGETPLATFORM": p, "TARGETOS": "linux", "TARGETARCH": runtime.GOARCH, "TARGETVARIANT": "",
	}
}

// values is the environment of words outside of a stage.
type values map[string]string

func (v values) Get(name string) (string, bool) { s, ok := v[name]; return s, ok }
func (v values) Keys() []string                 { return slices.Collect(maps.Keys(v)) }

// meta takes the arguments before the first FROM.
func (p *planner) meta(args []instructions.ArgCommand, given map[string]string) error {
	p.plan.Args = platformArgs()
	for i := range args {
		if err := args[i].Expand(func(word string) (string, error) {
			out, _, err := p.lex.ProcessWord(word, values(p.plan.Args))
			return out, err
		}); err != nil {
			return err
		}
		for _, a := range args[i].Args {
			if v, ok := given[a.Key]; ok {
				p.plan.Args[a.Key] = v
			} else if a.Value != nil {
				p.plan.Args[a.Key] = *a.Value
			}
		}
	}
	return nil
}

func (p *planner) stage(in instructions.Stage) (*Stage, error) {
	base, _, err := p.lex.ProcessWord(in.BaseName, values(p.plan.Args))
	if err != nil {
		return nil, err
	}
	st := &Stage{Name: in.Name, Base: base, BaseStage: -1, Text: in.SourceCode, Line: lineOf(in.Location)}
	if base == "" {
		return nil, api.Invalid("dockerfile", "line %d: %s: the base is empty", st.Line, in.SourceCode).WithHint("give each ARG of it a value with --build-arg")
	}
	platform, _, err := p.lex.ProcessWord(in.Platform, values(p.plan.Args))
	if err != nil {
		return nil, err
	}
	if platform != "" && platform != "linux/"+runtime.GOARCH && platform != runtime.GOARCH {
		return nil, api.Errorf(api.CodeUnsupported, "line %d: %s: this machine builds for linux/%s", st.Line, in.SourceCode, runtime.GOARCH)
	}
	if i, ok := p.plan.find(base); ok {
		st.BaseStage = i
	}
	for _, cmd := range in.Commands {
		step, err := p.step(st, cmd)
		if err != nil {
			return nil, err
		}
		st.Steps = append(st.Steps, step)
	}
	return st, nil
}

func lineOf(at []parser.Range) int {
	if len(at) == 0 {
		return 0
	}
	return at[0].Start.Line
}

// step turns an instruction into a step. What needs no variables is checked now, before anything runs.
func (p *planner) step(st *Stage, cmd instructions.Command) (Step, error) {
	text, _ := cmd.(fmt.Stringer)
	step := Step{Line: lineOf(cmd.Location())}
	if text != nil {
		step.Text = text.String()
	}
	unsupported := func(why, hint string) (Step, error) {
		return step, api.Errorf(api.CodeUnsupported, "line %d: %.200s: %s", step.Line, step.Text, why).WithHint("%s", hint)
	}
	switch c := cmd.(type) {
	case *instructions.OnbuildCommand:
		return unsupported("ONBUILD isn't part of OCI images", "put the instruction into the Dockerfiles that use this image")
	case *instructions.AddCommand:
		if i := slices.IndexFunc(c.SourcePaths, isRemote); i >= 0 {
			return unsupported("ADD gets nothing from the network", "use RUN with curl or git, to which the build's egress rules apply")
		}
	case *instructions.CopyCommand:
		if c.Parents {
			return unsupported("COPY --parents isn't supported", "copy each directory by itself")
		}
		if c.From != "" {
			p.copiesFrom(st, c.From)
		}
	case *instructions.RunCommand:
		if n := instructions.GetNetwork(c); n != instructions.NetworkDefault {
			return unsupported("RUN --network isn't supported", "the build's own egress rules apply to every step")
		}
		if err := p.mounts(st, c); err != nil {
			return unsupported(err.Error(), "cache, secret, tmpfs and bind mounts are supported")
		}
	}
	step.Resolve = func(s *State) (Op, error) { return p.resolve(s, cmd) }
	return step, nil
}

func (p *planner) copiesFrom(st *Stage, name string) {
	if i, ok := p.plan.find(name); ok {
		st.from = append(st.from, i)
	}
}

// mounts checks the mounts of a RUN, as far as their words are plain.
func (p *planner) mounts(st *Stage, c *instructions.RunCommand) error {
	for _, m := range instructions.GetMounts(c) {
		if m.Type == instructions.MountTypeSSH {
			return fmt.Errorf("--mount=type=ssh isn't supported")
		}
		if m.From != "" {
			p.copiesFrom(st, m.From)
		}
	}
	return nil
}

func isRemote(src string) bool {
	return strings.HasPrefix(src, "http://") || strings.HasPrefix(src, "https://") || strings.HasPrefix(src, "git@") || strings.HasPrefix(src, "git://") || strings.HasPrefix(src, "ssh://")
}

// resolve expands the words of an instruction and applies it.
func (p *planner) resolve(s *State, cmd instructions.Command) (Op, error) {
	expand := func(word string) (string, error) {
		out, _, err := p.lex.ProcessWord(word, s)
		return out, err
	}
	if c, ok := cmd.(instructions.SupportsSingleWordExpansion); ok {
		if err := c.Expand(expand); err != nil {
			return nil, badDockerfile(err)
		}
	}
	switch c := cmd.(type) {
	case *instructions.EnvCommand:
		for _, kv := range c.Env {
			s.SetEnv(kv.Key, kv.Value)
		}
	case *instructions.LabelCommand:
		for _, kv := range c.Labels {
			s.label(kv.Key, kv.Value)
		}
	case *instructions.MaintainerCommand:
		s.label("maintainer", c.Maintainer)
	case *instructions.ArgCommand:
		s.declare(c)
	case *instructions.UserCommand:
		s.Config.User = c.User
	case *instructions.StopSignalCommand:
		s.Config.StopSignal = c.Signal
	case *instructions.ShellCommand:
		s.Shell = c.Shell
	case *instructions.CmdCommand:
		s.Config.Cmd = s.command(c.ShellDependantCmdLine)
	case *instructions.EntrypointCommand:
		s.Config.Entrypoint, s.Config.Cmd = s.command(c.ShellDependantCmdLine), nil
	case *instructions.WorkdirCommand:
		s.Config.WorkingDir = s.Path(c.Path)
		return &makeDir{path: s.Config.WorkingDir}, nil
	case *instructions.RunCommand:
		return p.run(s, c)
	case *instructions.CopyCommand:
		return p.copy(s, c.SourcesAndDest, Copy{From: c.From, Owner: c.Chown, Mode: c.Chmod, Exclude: c.ExcludePatterns}, expand)
	case *instructions.AddCommand:
		return p.copy(s, c.SourcesAndDest, Copy{Owner: c.Chown, Mode: c.Chmod, Exclude: c.ExcludePatterns, Extract: c.Unpack == nil || *c.Unpack}, expand)
	}
	return nil, nil // EXPOSE, VOLUME and HEALTHCHECK say what a sandbox does not use
}

// declare gives an argument its value: of the request, of its instruction, or of the one before FROM.
func (s *State) declare(c *instructions.ArgCommand) {
	for _, a := range c.Args {
		if v, ok := s.given[a.Key]; ok {
			s.Args[a.Key] = v
		} else if a.Value != nil {
			s.Args[a.Key] = *a.Value
		} else if v, ok := s.global[a.Key]; ok {
			s.Args[a.Key] = v
		}
	}
}

// command is the list of arguments of a CMD, ENTRYPOINT or RUN without here-documents.
func (s *State) command(c instructions.ShellDependantCmdLine) []string {
	if !c.PrependShell {
		return c.CmdLine
	}
	return append(slices.Clone(s.Shell), strings.Join(c.CmdLine, " "))
}

// copy makes the operation of a COPY or an ADD.
func (p *planner) copy(s *State, in instructions.SourcesAndDest, c Copy, expand func(string) (string, error)) (Op, error) {
	raw := *p.lex
	raw.RawQuotes, raw.RawEscapes = true, true
	for _, f := range in.SourceContents {
		data := f.Data
		if f.Expand {
			var err error
			if data, _, err = raw.ProcessWord(data, s); err != nil {
				return nil, badDockerfile(err)
			}
		}
		c.Inline = append(c.Inline, Inline{Name: path.Base(f.Path), Content: []byte(data)})
	}
	c.Sources = in.SourcePaths
	if i, ok := p.plan.find(c.From); ok && c.From != "" {
		c.stage, c.hasStage = i, true
	}
	c.Dest = s.Path(in.DestPath)
	c.DestIsDir = strings.HasSuffix(in.DestPath, "/") || in.DestPath == "." || strings.HasSuffix(in.DestPath, "/.") || in.DestPath == ""
	return &c, nil
}

// run makes the operation of a RUN.
func (p *planner) run(s *State, c *instructions.RunCommand) (Op, error) {
	r := &Run{Argv: s.command(c.ShellDependantCmdLine)}
	if len(c.Files) > 0 {
		r.Argv, r.Script = s.heredoc(c.ShellDependantCmdLine)
	}
	for _, m := range instructions.GetMounts(c) {
		mount := Mount{Type: string(m.Type), ID: m.CacheID, From: m.From, Source: m.Source, Target: m.Target, Required: m.Required, Mode: 0o400}
		if i, ok := p.plan.find(m.From); ok && m.From != "" {
			mount.stage, mount.hasStage = i, true
		}
		if m.Env != nil {
			mount.Env = *m.Env
			if mount.Env == "" {
				mount.Env = m.CacheID
			}
		}
		if m.Mode != nil {
			mount.Mode = int64(*m.Mode)
		}
		if m.UID != nil {
			mount.UID = int(*m.UID)
		}
		if m.GID != nil {
			mount.GID = int(*m.GID)
		}
		if err := mount.complete(s); err != nil {
			return nil, err
		}
		r.Mounts = append(r.Mounts, mount)
	}
	return r, nil
}

// heredoc is the command of a RUN with here-documents, or a script that names its interpreter. A document
// that is all of the command is a script; otherwise the shell reads the documents itself.
func (s *State) heredoc(c instructions.ShellDependantCmdLine) (argv []string, script []byte) {
	line := strings.Join(c.CmdLine, " ")
	if doc := parser.MustParseHeredoc(line); doc != nil && len(c.Files) == 1 {
		text := c.Files[0].Data
		if doc.Chomp {
			text = parser.ChompHeredocContent(text)
		}
		if strings.HasPrefix(text, "#!") {
			return nil, []byte(text)
		}
		return append(slices.Clone(s.Shell), text), nil
	}
	for _, f := range c.Files {
		line += "\n" + f.Data + f.Name
	}
	return append(slices.Clone(s.Shell), line), nil
}

// Steps is the number of instructions.
func (p *Plan) Steps() (n int) {
	for _, s := range p.Stages {
		n += len(s.Steps)
	}
	return n
}
