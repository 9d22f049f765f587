package e2bapi

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net/http"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/core"
	"github.com/cloche-dev/cloche/internal/image/build"
)

const (
	// maxBuilds limits the builds that are remembered, and maxLogs the log entries of each.
	maxBuilds = 200
	maxLogs   = 20_000
	// logsPage is how many log entries one answer has.
	logsPage = 100
	// buildTimeout limits a build. E2B's is one hour.
	buildTimeout = time.Hour
	// uploadTime is how long a link for an upload works.
	uploadTime = time.Hour
	// maxTemplate limits the body of a template in bytes.
	maxTemplate = 8 << 20
	// defaultTag is the tag of a template without one.
	defaultTag = "default"
)

// The states of a build.
const (
	buildWaiting = "waiting"
	buildRunning = "building"
	buildReady   = "ready"
	buildFailed  = "error"
)

// buildLine is one entry of a build's log.
type buildLine struct {
	Timestamp time.Time `json:"timestamp"`
	Level     string    `json:"level"`
	Message   string    `json:"message"`
	Step      string    `json:"step,omitempty"`
}

// buildReason says why a build failed.
type buildReason struct {
	Message string `json:"message"`
	Step    string `json:"step,omitempty"`
}

// templateBuild is one build of a template.
type templateBuild struct {
	id, template, caller string
	tags                 []string

	mu     sync.Mutex
	state  string
	logs   []buildLine
	reason *buildReason
	cancel context.CancelFunc // of a running build
}

// builds are the builds of this server since its start, and the links for their uploads. It is safe for
// concurrent use.
type builds struct {
	uploads build.DirCaches

	mu    sync.Mutex
	list  []*templateBuild // the oldest first
	links map[string]uploadLink
}

// uploadLink is a link for an upload, by its token.
type uploadLink struct {
	caller, hash string
	until        time.Time
}

// randomHex returns 32 random hexadecimal digits.
func randomHex() string {
	b := make([]byte, 16)
	_, _ = rand.Read(b) // never fails
	return hex.EncodeToString(b)
}

// templateNames are valid names and tags of templates.
var (
	templateName = regexp.MustCompile(`^[a-z0-9][a-z0-9_-]{0,99}$`)
	templateTag  = regexp.MustCompile(`^[a-z0-9._-]{1,100}$`)
	filesHash    = regexp.MustCompile(`^[0-9a-f]{64}$`)
)

// splitTemplate takes the name and the tag of a template apart.
func splitTemplate(text string) (name, tag string, err error) {
	name, tag, tagged := strings.Cut(text, ":")
	if team, own, ok := strings.Cut(name, "/"); ok && templateName.MatchString(team) {
		name = own // a key has one team
	}
	if !tagged {
		tag = defaultTag
	}
	if !templateName.MatchString(name) || !templateTag.MatchString(tag) {
		return "", "", fail(http.StatusBadRequest, "%q is not the name of a template: a name has a-z, 0-9, - and _, and can have a tag after a colon", clip(text))
	}
	return name, tag, nil
}

// builtRef is the name of the image of a template that a caller has built.
func builtRef(caller core.Caller, name, tag string) string {
	return api.BuiltRegistry + "/" + caller.Tenant + "/" + name + ":" + tag
}

// requestBuild registers a build of a template.
func (s *Server) requestBuild(w http.ResponseWriter, r request) error {
	var req struct {
		Name string   `json:"name"`
		Tags []string `json:"tags"`
	}
	if err := decode(r.Request, &req); err != nil {
		return err
	}
	name, tag, err := splitTemplate(req.Name)
	if err != nil {
		return err
	}
	tags := req.Tags
	if len(tags) == 0 || strings.Contains(req.Name, ":") {
		tags = append([]string{tag}, tags...)
	}
	for _, t := range tags {
		if !templateTag.MatchString(t) {
			return fail(http.StatusBadRequest, "%q is not a tag of a template", clip(t))
		}
	}
	slices.Sort(tags)
	b := &templateBuild{id: uuidOf(randomHex()), template: name, caller: r.callerID, tags: slices.Compact(tags), state: buildWaiting}
	if err := s.builds.add(b); err != nil {
		return err
	}
	writeJSON(w, http.StatusAccepted, map[string]any{
		"templateID": name, "buildID": b.id, "public": false, "names": []string{name}, "tags": b.tags, "aliases": []string{name},
	})
	return nil
}

// add remembers a build, and forgets the oldest one that has ended if there are too many.
func (b *builds) add(t *templateBuild) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if len(b.list) >= maxBuilds {
		i := slices.IndexFunc(b.list, func(t *templateBuild) bool { return t.ended() })
		if i < 0 {
			return fail(http.StatusTooManyRequests, "%d builds have not ended", len(b.list))
		}
		b.list = slices.Delete(b.list, i, i+1)
	}
	b.list = append(b.list, t)
	return nil
}

// find returns a build of a caller.
func (b *builds) find(r request) (*templateBuild, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, t := range b.list {
		if t.id == r.PathValue("build") && t.template == r.PathValue("id") && t.caller == r.callerID {
			return t, nil
		}
	}
	return nil, fail(http.StatusNotFound, "build '%s' not found", clip(r.PathValue("build")))
}

// supersede ends the earlier builds of the same template with a tag of t.
func (b *builds) supersede(t *templateBuild) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, other := range b.list {
		if other == t {
			return
		}
		if other.template == t.template && other.caller == t.caller && slices.ContainsFunc(other.tags, func(tag string) bool { return slices.Contains(t.tags, tag) }) {
			other.end(buildFailed, &buildReason{Message: "a newer build of the template has begun"})
		}
	}
}

func (t *templateBuild) ended() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.state == buildReady || t.state == buildFailed
}

// begin starts a waiting build.
func (t *templateBuild) begin(cancel context.CancelFunc) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.state != buildWaiting {
		return false
	}
	t.state, t.cancel = buildRunning, cancel
	return true
}

// end ends a build that has not ended.
func (t *templateBuild) end(state string, reason *buildReason) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.state == buildReady || t.state == buildFailed {
		return
	}
	if t.cancel != nil {
		t.cancel()
	}
	t.state, t.reason = state, reason
}

// log adds an entry. After the last one that is kept, the log says so.
func (t *templateBuild) log(level, step, text string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	switch {
	case len(t.logs) == maxLogs:
		level, text = "warn", "the log has no more entries"
	case len(t.logs) > maxLogs:
		return
	}
	t.logs = append(t.logs, buildLine{Timestamp: time.Now().UTC(), Level: level, Message: clipLine(text), Step: step})
}

// buildStatus answers with the state of a build and a page of its log.
func (s *Server) buildStatus(w http.ResponseWriter, r request) error {
	t, err := s.builds.find(r)
	if err != nil {
		return err
	}
	offset := 0
	if text := r.URL.Query().Get("logsOffset"); text != "" {
		if offset, err = strconv.Atoi(text); err != nil || offset < 0 {
			return fail(http.StatusBadRequest, "logsOffset is %q", clip(text))
		}
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	page := t.logs[min(offset, len(t.logs)):min(offset+logsPage, len(t.logs))]
	out := map[string]any{
		"templateID": t.template, "buildID": t.id, "status": t.state, "logEntries": append([]buildLine{}, page...), "logs": []string{},
	}
	if t.reason != nil {
		out["reason"] = t.reason
	}
	writeJSON(w, http.StatusOK, out)
	return nil
}

// uploadURL answers with a link for the files of a COPY. It needs no key: its token cannot be guessed.
func (s *Server) uploadURL(w http.ResponseWriter, r request) error {
	hash := r.PathValue("hash")
	if !filesHash.MatchString(hash) {
		return fail(http.StatusBadRequest, "%q is not a hash of files", clip(hash))
	}
	present := false
	if f, err := s.builds.uploads.Open(r.callerID, hash); err != nil {
		return err
	} else if f != nil {
		present = true
		_ = f.Close()
	}
	token := s.builds.link(uploadLink{caller: r.callerID, hash: hash, until: time.Now().Add(uploadTime)})
	scheme := "http://"
	if r.TLS != nil {
		scheme = "https://"
	}
	writeJSON(w, http.StatusCreated, map[string]any{"present": present, "url": scheme + r.Host + "/templates/uploads/" + token})
	return nil
}

// link remembers a link and returns its token.
func (b *builds) link(l uploadLink) string {
	b.mu.Lock()
	defer b.mu.Unlock()
	now := time.Now()
	for token, old := range b.links {
		if old.until.Before(now) {
			delete(b.links, token)
		}
	}
	token := newToken()
	b.links[token] = l
	return token
}

// upload takes the files of a COPY.
func (s *Server) upload(w http.ResponseWriter, r *http.Request) {
	s.builds.mu.Lock()
	l, ok := s.builds.links[r.PathValue("token")]
	s.builds.mu.Unlock()
	if !ok || l.until.Before(time.Now()) {
		s.writeError(w, fail(http.StatusNotFound, "the link has expired"))
		return
	}
	err := s.builds.uploads.Save(l.caller, l.hash, func(out io.Writer) error {
		n, err := io.Copy(out, r.Body)
		if err == nil && r.ContentLength >= 0 && n != r.ContentLength {
			err = io.ErrUnexpectedEOF
		}
		return err
	})
	if err != nil {
		s.log.Debug("an upload failed", "error", err)
		s.writeError(w, fail(http.StatusBadRequest, "the files did not arrive whole: %v", err))
		return
	}
	w.WriteHeader(http.StatusOK)
}

// startBuild begins a build.
func (s *Server) startBuild(w http.ResponseWriter, r request) error {
	t, err := s.builds.find(r)
	if err != nil {
		return err
	}
	var req templateRequest
	if err := decodeUpTo(r.Request, &req, maxTemplate); err != nil {
		return err
	}
	base, err := s.baseOf(r, req)
	if err != nil {
		return err
	}
	plan, err := req.plan(base)
	if err != nil {
		return err
	}
	// The build goes on when the request has ended, until it has ended or the server closes.
	ctx, cancel := context.WithTimeout(s.ctx, buildTimeout)
	if !t.begin(cancel) {
		cancel()
		return fail(http.StatusBadRequest, "build '%s' is not waiting", t.id)
	}
	s.builds.supersede(t)
	s.wg.Go(func() {
		defer cancel()
		s.runBuild(ctx, r.caller, t, plan, req)
	})
	w.WriteHeader(http.StatusAccepted)
	return nil
}

// runBuild builds the image of a template, and gives it its names.
func (s *Server) runBuild(ctx context.Context, caller core.Caller, t *templateBuild, plan *build.Plan, req templateRequest) {
	v := &buildView{t: t, total: len(req.Steps)}
	labels := map[string]string{labelTemplate: t.template}
	if req.StartCmd != "" {
		labels[labelStart] = req.StartCmd
	}
	if req.ReadyCmd != "" {
		labels[labelReady] = req.ReadyCmd
	}
	spec := api.BuildSandbox{Profile: s.profile}
	var err error
	if spec.Network, spec.Egress, err = s.egressOf(nil, nil); err == nil {
		_, err = s.core.BuildPlan(ctx, caller, build.Request{
			Name: builtRef(caller, t.template, t.tags[0]), Plan: plan, Labels: labels, NoCache: req.Force,
			Upload: func(hash string) (io.ReadCloser, error) { return s.builds.uploads.Open(t.caller, hash) },
		}, spec, v.tell)
	}
	if err == nil && (req.StartCmd != "" || req.ReadyCmd != "") {
		v.step = "finalize"
		err = s.tryTemplate(ctx, caller, t)
	}
	for _, tag := range t.tags[1:] {
		if err == nil {
			_, err = s.core.TagImage(ctx, caller, builtRef(caller, t.template, t.tags[0]), builtRef(caller, t.template, tag))
		}
	}
	if err != nil {
		text := s.buildError(err, req, v.step)
		t.log("error", v.step, text)
		t.end(buildFailed, &buildReason{Message: text, Step: v.step})
		return
	}
	t.log("info", "", "Build finished")
	t.end(buildReady, nil)
}

// buildError is the text of a failure of a step, in E2B's words where its clients expect them.
func (s *Server) buildError(err error, req templateRequest, step string) string {
	if errors.Is(err, context.Canceled) {
		return "the build was canceled"
	}
	e, ok := errors.AsType[*api.Error](err)
	n, _ := strconv.Atoi(step)
	if ok && e.Field == "user" && n > 0 {
		run := req.Steps[n-1]
		return fmt.Sprintf("failed to run command '%s': command failed: unauthenticated: invalid username: '%s'", clip(run.arg(0)), clip(run.arg(1)))
	}
	return s.toWire(err).Message
}

// buildView writes the events of a build into its log.
type buildView struct {
	t     *templateBuild
	total int
	step  string
	rest  map[api.Stream]string // output without a line end
}

func (v *buildView) tell(e api.BuildEvent) {
	switch {
	case e.Step != nil:
		v.flush()
		// The first step of the plan prepares the image, and is not the client's.
		n := e.Step.Number - 1
		if v.step = "base"; n < 1 || n > v.total {
			return
		}
		v.step = strconv.Itoa(n)
		mark := ""
		if e.Step.Cached {
			mark = "CACHED "
		}
		v.t.log("info", v.step, mark+"[builder "+v.step+"/"+strconv.Itoa(v.total)+"] "+e.Step.Text)
	case len(e.Data) > 0:
		v.output(e.Stream, string(e.Data))
	case e.Warning != "":
		v.t.log("warn", v.step, e.Warning)
	}
}

// output logs whole lines.
func (v *buildView) output(stream api.Stream, data string) {
	if v.rest == nil {
		v.rest = map[api.Stream]string{}
	}
	text := v.rest[stream] + data
	for {
		line, rest, ok := strings.Cut(text, "\n")
		if !ok && len(text) < 8<<10 {
			break
		}
		v.line(stream, line)
		text = rest
	}
	v.rest[stream] = text
}

func (v *buildView) line(stream api.Stream, line string) {
	level := "info"
	if stream == api.Stderr {
		level = "warn"
	}
	v.t.log(level, v.step, strings.TrimRight(line, "\r"))
}

// flush logs what has no line end.
func (v *buildView) flush() {
	for _, stream := range []api.Stream{api.Stdout, api.Stderr} {
		if v.rest[stream] != "" {
			v.line(stream, v.rest[stream])
			v.rest[stream] = ""
		}
	}
}
