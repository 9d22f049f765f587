//go:build linux && !remoteonly

package network

import (
	"errors"
	"fmt"
	"io/fs"
	"os"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/egress/intercept"
	"github.com/cloche-dev/cloche/internal/hostfile"
	"github.com/cloche-dev/cloche/internal/policy"
)

// intercept makes what opens TLS, where something must be seen inside; nil where
// nothing must.
func (w *Network) intercept(g policy.EgressGrant) (*intercept.Interceptor, error) {
	requests, err := g.RequestRules()
	if err != nil {
		return nil, fmt.Errorf("compile rules of requests: %w", err)
	}
	if len(g.Requests)+len(g.Demanded)+len(w.place.Secrets) == 0 && !w.place.Opens {
		return nil, nil
	}
	authority := w.Authority()
	if authority == nil {
		// For rules that come later too. Programs that run do not trust it then, so to
		// these hosts they have no network: a new sandbox has.
		if authority, err = loadAuthority(w.place.Dir, w.place.ID); err != nil {
			return nil, err
		}
		w.mu.Lock()
		w.authority = authority
		w.mu.Unlock()
	}
	return intercept.New(intercept.Options{
		Authority: authority, Secrets: w.place.Secrets, Requests: requests, Roots: w.networks.opts.Roots, Value: w.place.Value, Used: w.secretUsed,
	})
}

// loadAuthority is the one of an earlier life, or a new one.
func loadAuthority(dir, label string) (*intercept.Authority, error) {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return nil, err
	}
	defer root.Close()
	data, err := root.ReadFile(AuthorityFile)
	if err == nil {
		return intercept.LoadAuthority(data)
	}
	if !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	a, err := intercept.NewAuthority(label)
	if err != nil {
		return nil, err
	}
	if data, err = a.Marshal(); err != nil {
		return nil, err
	}
	return a, hostfile.Replace(root, AuthorityFile, data)
}

// Authority is whom the programs of the sandbox must trust; nil where no TLS is
// opened.
func (w *Network) Authority() *intercept.Authority {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.authority
}

// secretUsed records a request that had secrets in it.
func (w *Network) secretUsed(u intercept.Use) {
	w.note(api.EgressRecord{
		Kind: api.EgressRequest, Time: u.Time, Flow: u.Flow, Name: string(u.Name), Port: int(u.Port), Method: u.Method, Path: u.Path,
		Status: u.Status, Secrets: u.Secrets,
	})
}
