package envd

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"path"
	"strings"
	"sync"
	"time"

	"connectrpc.com/connect"

	"github.com/cloche-dev/cloche/api"
)

const (
	// maxAccounts bounds how much of a sandbox's /etc/passwd is read in bytes.
	maxAccounts = 1 << 20
	// accountsFresh is how long a list of users is not read again for a name that it does not have.
	accountsFresh = time.Second
	// maxName bounds the name of a user in bytes.
	maxName = 256
)

// actor is the user inside a sandbox that a request acts as.
type actor struct {
	sb   Sandbox
	name string // for execs; empty is the user of the sandbox
	home string
	// access is with what rights files are accessed.
	access api.FileAccess
}

// unknownUser is the error for a user that the sandbox does not have.
type unknownUser struct{ name string }

func (e *unknownUser) Error() string { return fmt.Sprintf("user '%.256s' does not exist", e.name) }

// actorOf finds the user of a request. name is empty if the request does not name one.
//
// The user of the sandbox itself accesses files without checks of its permissions, as E2B's clients
// expect; the rights of any other user are those that the kernel gives its programs.
func (s *Server) actorOf(ctx context.Context, sb Sandbox, name string) (*actor, error) {
	if name == "" {
		name = sb.User
	}
	if len(name) > maxName || strings.ContainsAny(name, ":\x00\n/") {
		return nil, &unknownUser{name}
	}
	box, err := s.core.Get(ctx, sb.Caller, sb.Ref)
	if err != nil {
		return nil, err
	}
	a := &actor{sb: sb, name: name, home: box.Cwd}
	if name == "" || name == box.User {
		a.name = box.User
	} else {
		a.access.User = name
	}
	if a.name == "" {
		if a.home == "" {
			a.home = "/"
		}
		return a, nil
	}
	home, ok, err := s.accounts.home(ctx, s.core, sb, a.name)
	switch {
	case err != nil:
		return nil, err
	case ok:
		a.home = home
	case a.access.User == "": // the sandbox runs as a user without an account, by its number
	default:
		return nil, &unknownUser{name}
	}
	if home := sb.Env["HOME"]; a.access.User == "" && home != "" {
		a.home = home // which the programs of the sandbox's user have too
	}
	if !strings.HasPrefix(a.home, "/") {
		a.home = "/"
	}
	return a, nil
}

// rpcActor finds the user of a call by its Basic authorization.
func (s *Server) rpcActor(ctx context.Context, h http.Header) (*actor, error) {
	r := http.Request{Header: h}
	name, _, _ := r.BasicAuth()
	a, err := s.actorOf(ctx, requestOf(ctx).sb, name)
	if unknown, ok := errors.AsType[*unknownUser](err); ok {
		return nil, connect.NewError(connect.CodeUnauthenticated, fmt.Errorf("invalid username: '%.256s'", unknown.name))
	}
	if err != nil {
		return nil, rpcError(err)
	}
	return a, nil
}

// resolve makes a path of a client absolute: empty is the working directory, and a relative path
// begins at the home of the user.
func (a *actor) resolve(name string) (string, error) {
	switch {
	case strings.ContainsRune(name, 0):
		return "", connect.NewError(connect.CodeInvalidArgument, errors.New("the path holds a NUL byte"))
	case name == "":
		return a.dir(), nil
	case name == "~":
		return path.Clean(a.home), nil
	case strings.HasPrefix(name, "~/"):
		return path.Join(a.home, name[2:]), nil
	case strings.HasPrefix(name, "~"):
		return "", connect.NewError(connect.CodeInvalidArgument, fmt.Errorf("the home of another user cannot be named: '%.200s'", name))
	case strings.HasPrefix(name, "/"):
		return path.Clean(name), nil
	}
	return path.Join(a.home, name), nil
}

// dir is the default working directory.
func (a *actor) dir() string {
	if a.sb.Dir != "" {
		return path.Clean("/" + a.sb.Dir)
	}
	return path.Clean(a.home)
}

func (a *actor) place(name string) api.FilePlace {
	return api.FilePlace{Path: name, FileAccess: a.access}
}

// accountCache has the homes of the users of sandboxes.
type accountCache struct {
	mu   sync.Mutex
	byID map[string]*accounts
}

type accounts struct {
	homes map[string]string
	read  time.Time
}

func newAccountCache() *accountCache { return &accountCache{byID: map[string]*accounts{}} }

func (c *accountCache) forget(ref string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.byID, ref)
}

// home returns the home of a user by the sandbox's own /etc/passwd, which is read again for a name
// that was not there.
func (c *accountCache) home(ctx context.Context, files FileReads, sb Sandbox, name string) (home string, ok bool, err error) {
	c.mu.Lock()
	known := c.byID[sb.Ref]
	c.mu.Unlock()
	if known != nil {
		if home, ok = known.homes[name]; ok || time.Since(known.read) < accountsFresh {
			return home, ok, nil
		}
	}
	fresh := &accounts{homes: map[string]string{}, read: time.Now()}
	r, _, err := files.ReadFile(ctx, sb.Caller, sb.Ref, api.FilePlace{Path: "/etc/passwd"}, 0, maxAccounts)
	switch {
	case err == nil:
		fresh.homes = readAccounts(r)
		r.Close()
	case errnoOf(err) != "": // the sandbox has no such file
	default:
		return "", false, err
	}
	if _, ok := fresh.homes["root"]; !ok {
		fresh.homes["root"] = "/root"
	}
	c.mu.Lock()
	c.byID[sb.Ref] = fresh
	c.mu.Unlock()
	home, ok = fresh.homes[name]
	return home, ok, nil
}

// readAccounts reads lines of the form of /etc/passwd, which the sandbox has written.
func readAccounts(r io.Reader) map[string]string {
	homes := map[string]string{}
	lines := bufio.NewScanner(io.LimitReader(r, maxAccounts))
	for lines.Scan() {
		f := strings.Split(lines.Text(), ":")
		if len(f) < 6 || f[0] == "" || len(f[0]) > maxName || !strings.HasPrefix(f[5], "/") {
			continue
		}
		if _, dup := homes[f[0]]; !dup {
			homes[f[0]] = f[5]
		}
	}
	return homes
}
