package e2bapi

import (
	"encoding/json"
	"net/http"
	"os"
	"slices"
	"strings"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/image/build"
)

// maxTemplateSteps limits the steps of a template.
const maxTemplateSteps = 1000

// templateRequest is a template that is to be built.
type templateRequest struct {
	FromImage    string          `json:"fromImage"`
	FromTemplate string          `json:"fromTemplate"`
	Registry     json.RawMessage `json:"fromImageRegistry"`
	Force        bool            `json:"force"`
	Steps        []templateStep  `json:"steps"`
	StartCmd     string          `json:"startCmd"`
	ReadyCmd     string          `json:"readyCmd"`
}

// templateStep is a step: RUN, COPY, ENV, WORKDIR or USER.
type templateStep struct {
	Type      string   `json:"type"`
	Args      []string `json:"args"`
	Force     bool     `json:"force"`
	FilesHash string   `json:"filesHash"`
}

// The base images of E2B's own templates, which are the default templates here.
const (
	imageBase = "e2bdev/base"
	imageCode = "e2bdev/code-interpreter"
)

// baseOf returns the image that a template begins with.
func (s *Server) baseOf(r request, req templateRequest) (string, error) {
	switch {
	case (req.FromImage == "") == (req.FromTemplate == ""):
		return "", fail(http.StatusBadRequest, "set either fromImage or fromTemplate")
	case len(req.Registry) > 0 && string(req.Registry) != "null":
		return "", unsupported("this server takes no logins of registries: the daemon's Docker configuration has them")
	case req.FromTemplate != "":
		return s.imageOf(r, req.FromTemplate)
	}
	name, _, _ := strings.Cut(req.FromImage, ":")
	switch name {
	case imageBase:
		return s.imageOf(r, templateBase)
	case imageCode:
		return s.imageOf(r, templateCode)
	}
	if strings.ContainsAny(req.FromImage, " \t\r\n") {
		return "", fail(http.StatusBadRequest, "%q is not the name of an image", clip(req.FromImage))
	}
	return req.FromImage, nil
}

// defaultUser is the user of E2B's sandboxes.
const defaultUser = "user"

// addUser is a program for sh that adds the user $1 if it is missing, and a group of its own.
const addUser = `set -e
grep -q "^$1:" /etc/passwd 2>/dev/null && exit 0
id=1000
while grep -q ":x\{0,1\}:$id:" /etc/passwd /etc/group 2>/dev/null; do id=$((id + 1)); done
shell=/bin/sh; [ ! -x /bin/bash ] || shell=/bin/bash
echo "$1:x:$id:$id::/home/$1:$shell" >> /etc/passwd
echo "$1:x:$id:" >> /etc/group
mkdir -p "/home/$1"
chown "$id:$id" "/home/$1" 2>/dev/null || true
mkdir -p /code /usr/local 2>/dev/null || true
chmod 777 /code /usr/local 2>/dev/null || true`

// runShell runs the command $1 as E2B does, in a login shell of bash if the image has it.
const runShell = `if [ -x /bin/bash ]; then exec /bin/bash -l -c "$1"; fi; exec /bin/sh -l -c "$1"`

// plan makes the plan of a build. Its first step prepares the image.
func (req templateRequest) plan(base string) (*build.Plan, error) {
	if len(req.Steps) > maxTemplateSteps {
		return nil, fail(http.StatusBadRequest, "the template has %d steps: it can have at most %d", len(req.Steps), maxTemplateSteps)
	}
	st := &build.Stage{Base: base, BaseStage: -1, Text: "FROM " + base}
	st.Steps = append(st.Steps, build.Step{Text: "prepare the image", Resolve: func(s *build.State) (build.Op, error) {
		if req.FromTemplate == "" {
			s.Config.User, s.Config.WorkingDir = defaultUser, home
		}
		// The default command of the image below is not the template's.
		s.Config.Entrypoint, s.Config.Cmd = nil, nil
		return addUserOp(defaultUser), nil
	}})
	for i, step := range req.Steps {
		resolve, err := step.resolve()
		if err != nil {
			return nil, fail(http.StatusBadRequest, "step %d: %v", i+1, err)
		}
		st.Steps = append(st.Steps, build.Step{
			Text: step.Type + " " + strings.Join(step.Args, " "), Force: step.Force, Resolve: resolve,
		})
	}
	return &build.Plan{Stages: []*build.Stage{st}}, nil
}

func addUserOp(name string) build.Op {
	return &build.Run{Argv: []string{"/bin/sh", "-c", addUser, "sh", name}, User: "root", Cwd: "/"}
}

// arg returns an argument of the step, or "".
func (t templateStep) arg(i int) string {
	if i < len(t.Args) {
		return t.Args[i]
	}
	return ""
}

// resolve checks a step and returns what does it.
func (t templateStep) resolve() (func(*build.State) (build.Op, error), error) {
	bad := func(text string) (func(*build.State) (build.Op, error), error) {
		return nil, fail(http.StatusBadRequest, "%s %s", clip(t.Type), text)
	}
	switch {
	case t.Type == "ENV" && len(t.Args)%2 != 0:
		return bad("has a name without a value")
	case t.Type == "COPY" && (len(t.Args) < 2 || !filesHash.MatchString(t.FilesHash)):
		return bad("needs a source, a destination and filesHash")
	case t.Type != "ENV" && t.arg(0) == "":
		return bad("has no argument")
	}
	switch t.Type {
	case "RUN":
		return func(*build.State) (build.Op, error) {
			return &build.Run{Argv: []string{"/bin/sh", "-c", runShell, "sh", t.arg(0)}, User: t.arg(1)}, nil
		}, nil
	case "COPY":
		return t.copy, nil
	case "ENV":
		return func(s *build.State) (build.Op, error) {
			for pair := range slices.Chunk(t.Args, 2) {
				s.SetEnv(pair[0], os.Expand(pair[1], func(name string) string { v, _ := s.Get(name); return v }))
			}
			return nil, nil
		}, nil
	case "WORKDIR":
		return func(s *build.State) (build.Op, error) {
			s.Config.WorkingDir = s.Path(t.arg(0))
			return build.MakeDir(s.Config.WorkingDir, s.Config.User), nil
		}, nil
	case "USER":
		return func(s *build.State) (build.Op, error) {
			s.Config.User = t.arg(0)
			return addUserOp(t.arg(0)), nil
		}, nil
	}
	return bad("is not a step")
}

func (t templateStep) copy(s *build.State) (build.Op, error) {
	dest := t.arg(1)
	c := &build.Copy{
		Upload: t.FilesHash, Sources: []string{t.arg(0)}, Dest: s.Path(dest),
		DestIsDir: strings.HasSuffix(dest, "/") || dest == ".", Owner: t.arg(2), Mode: t.arg(3),
	}
	if c.Owner == "" {
		c.Owner = s.Config.User
	}
	return c, nil
}

// The labels of the images of templates: the template, and the commands that start it and say when it is ready.
const (
	labelTemplate = "e2b.template"
	labelStart    = "e2b.start_cmd"
	labelReady    = "e2b.ready_cmd"
)

// isTemplate reports whether an image was built as a template.
func isTemplate(im api.Image) bool { return im.Config != nil && im.Config.Labels[labelTemplate] != "" }
