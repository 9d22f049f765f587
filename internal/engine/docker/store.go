package docker

import (
	"archive/tar"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"path/filepath"
	"strconv"
	"sync"
	"time"

	"github.com/containerd/errdefs"
	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/api/types/mount"
	"github.com/moby/moby/client"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/engine"
	"github.com/cloche-dev/cloche/internal/engine/inner"
)

const (
	// marker is the last file that is put into an agent's volume.
	marker = ".complete"
	// maxAnswer bounds what is read of a daemon that tells of its progress.
	maxAnswer = 1 << 20
)

// store is what the engine has given to one daemon: images of roots, and agents.
// What is there stays there for the next sandbox.
type store struct {
	e *Engine
	d *daemon

	mu     sync.Mutex // one thing is given at a time
	roots  map[string]string
	agents map[string]bool
}

func (e *Engine) storeOf(d *daemon) *store {
	s, _ := e.stores.LoadOrStore(d.host, &store{e: e, d: d, roots: map[string]string{}, agents: map[string]bool{}})
	return s.(*store)
}

// identity tells files apart that do not change after their creation.
func identity(name string) (string, error) {
	fi, err := os.Stat(name)
	if err != nil {
		return "", err
	}
	if !fi.Mode().IsRegular() {
		return "", fmt.Errorf("%s is no file", filepath.Base(name))
	}
	return hash(name, strconv.FormatInt(fi.Size(), 10), strconv.FormatInt(fi.ModTime().UnixNano(), 10)), nil
}

// hash is a short name for all of parts together.
func hash(parts ...string) string {
	h := sha256.New()
	for _, p := range parts {
		fmt.Fprintf(h, "%d:%s", len(p), p)
	}
	return hex.EncodeToString(h.Sum(nil)[:16])
}

// forget has everything looked up again, after another program has removed it.
func (s *store) forget() {
	s.mu.Lock()
	defer s.mu.Unlock()
	clear(s.roots)
	clear(s.agents)
}

// root returns the daemon's id of the image that is made of an EROFS image.
func (s *store) root(ctx context.Context, name string) (string, error) {
	key, err := identity(name)
	if err != nil {
		return "", fmt.Errorf("look at the root image: %w", err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.image(ctx, key, name, func(w io.Writer) error { return writeTree(ctx, w, name) })
}

// image returns the image with a key, which is made by write if it is not there.
// The caller holds s.mu.
func (s *store) image(ctx context.Context, key, source string, write func(io.Writer) error) (string, error) {
	if id := s.roots[key]; id != "" {
		return id, nil
	}
	id, err := s.findImage(ctx, key)
	if err == nil && id == "" {
		s.dropStale(ctx)
		if err = s.importImage(ctx, key, source, write); err == nil {
			id, err = s.findImage(ctx, key)
		}
	}
	if err != nil {
		return "", err
	}
	if id == "" {
		return "", errors.New("the daemon has not kept an image that it was given")
	}
	s.roots[key] = id
	return id, nil
}

func (s *store) findImage(ctx context.Context, key string) (string, error) {
	list, err := s.d.ImageList(ctx, client.ImageListOptions{Filters: withLabel(labelRoot, key)})
	if err != nil || len(list.Items) == 0 {
		return "", err
	}
	return list.Items[0].ID, nil
}

// dropStale removes images whose source is gone. What a container uses stays: the
// daemon refuses.
func (s *store) dropStale(ctx context.Context) {
	list, err := s.d.ImageList(ctx, client.ImageListOptions{Filters: make(client.Filters).Add("label", labelRoot)})
	if err != nil {
		return
	}
	for _, image := range list.Items {
		source := image.Labels[labelSource]
		if source == "" {
			continue
		}
		if _, err := os.Stat(source); errors.Is(err, os.ErrNotExist) {
			if _, err := s.d.ImageRemove(ctx, image.ID, client.ImageRemoveOptions{PruneChildren: true}); err != nil {
				s.e.log.Debug("an image of a root that is gone stays", "image", image.ID, "error", err)
			}
		}
	}
}

// errTakesNoMore ends the writing of an image whose reader has gone.
var errTakesNoMore = errors.New("the daemon takes no more")

// brokenImage is the error of one of Cloche's images that cannot be read, whatever it ended
// with.
func brokenImage(err error) error {
	return api.Errorf(api.CodeInternal, "an image of a sandbox cannot be read").WithCause(err)
}

// importImage streams a tar to the daemon. Nothing of it is kept on the way.
func (s *store) importImage(ctx context.Context, key, source string, write func(io.Writer) error) error {
	r, w := io.Pipe()
	var wg sync.WaitGroup
	var werr error
	wg.Go(func() {
		werr = write(w)
		w.CloseWithError(werr)
	})
	changes := []string{"LABEL " + labelRoot + "=" + key}
	if source != "" {
		changes = append(changes, "LABEL "+labelSource+"="+strconv.Quote(source))
	}
	answer, err := s.d.ImageImport(ctx, client.ImageImportSource{Source: r, SourceName: "-"}, "cloche-root", client.ImageImportOptions{Tag: key, Changes: changes})
	if err == nil {
		_, err = io.Copy(io.Discard, io.LimitReader(answer, maxAnswer))
		answer.Close()
	}
	r.CloseWithError(errTakesNoMore)
	wg.Wait()
	if werr != nil && !errors.Is(werr, errTakesNoMore) && ctx.Err() == nil {
		return brokenImage(werr)
	}
	if err != nil {
		return fmt.Errorf("import image: %w", err)
	}
	return nil
}

// agent returns the name of the volume that has the agent of an EROFS image, and the
// program of the inside.
func (s *store) agent(ctx context.Context, a engine.Agent) (string, error) {
	key, err := identity(a.Image)
	if err != nil {
		return "", fmt.Errorf("look at the agent's image: %w", err)
	}
	program, err := s.e.inner()
	if err != nil {
		return "", fmt.Errorf("read the program of the inside: %w", err)
	}
	key = hash(key, program.hash)
	name := agentPrefix + key
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.agents[name] {
		// A daemon of another version may have removed it while no container had it.
		_, err := s.d.ContainerInspect(ctx, name, client.ContainerInspectOptions{})
		if err == nil || !errdefs.IsNotFound(err) {
			return name, err
		}
	}
	if err := s.keep(ctx, name, key); err != nil {
		return "", err
	}
	// What begins with a slash is the daemon's, whatever this machine's paths are.
	_, err = s.d.ContainerStatPath(ctx, name, client.ContainerStatPathOptions{Path: path.Join(volumeTarget, marker)})
	if errdefs.IsNotFound(err) {
		if err = s.fill(ctx, name, a.Image, program.data); err == nil {
			s.dropOldAgents(ctx, name)
		}
	}
	if err != nil {
		return "", fmt.Errorf("fill the agent's volume: %w", err)
	}
	s.agents[name] = true
	return name, nil
}

// dropOldAgents removes the volumes of agents of other versions that no container has
// but the one that keeps it. What cannot be removed now is found again when the next
// version comes.
func (s *store) dropOldAgents(ctx context.Context, current string) {
	list, err := s.d.VolumeList(ctx, client.VolumeListOptions{Filters: make(client.Filters).Add("label", labelAgent)})
	if err != nil {
		s.e.log.Debug("agents of other versions are not looked for", "error", err)
		return
	}
	for _, v := range list.Items {
		if key := v.Labels[labelAgent]; key == "" || v.Name != agentPrefix+key || v.Name == current {
			continue
		}
		if err := s.dropAgent(ctx, v.Name); err != nil {
			s.e.log.Debug("an agent of another version stays", "volume", v.Name, "error", err)
		}
	}
}

// dropAgent removes an agent's volume that no container has. The daemon refuses to remove one that a
// container has, which keeps one that is taken meanwhile.
func (s *store) dropAgent(ctx context.Context, name string) error {
	having, err := s.d.ContainerList(ctx, client.ContainerListOptions{All: true, Filters: make(client.Filters).Add("volume", name)})
	if err != nil {
		return err
	}
	for _, c := range having.Items {
		if c.Labels[labelAgent] == "" {
			return nil // it is in use
		}
	}
	if err := s.d.remove(ctx, name); err != nil {
		return err
	}
	_, err = s.d.VolumeRemove(ctx, name, client.VolumeRemoveOptions{})
	return err
}

// agentPrefix begins the names of the volumes of agents, and of what keeps them.
const agentPrefix = "cloche-agent-"

// volumeTarget is where the keeper of a volume sees it.
const volumeTarget = "/volume"

// keepTries are for another Cloche daemon that makes the same: each kind of daemon
// has errors of its own for that, and some have it half way.
const keepTries = 10

// keep makes the volume and a container with it that is never started: through it
// the volume is filled, and by it the volume is in use when nothing else is.
func (s *store) keep(ctx context.Context, name, key string) error {
	for n := 1; ; n++ {
		err := s.makeKeeper(ctx, name, key)
		if err == nil || n == keepTries || unreachable(err) {
			return err
		}
		select {
		case <-time.After(time.Duration(n) * 10 * time.Millisecond):
		case <-ctx.Done():
			return errors.Join(ctx.Err(), err)
		}
	}
}

func (s *store) makeKeeper(ctx context.Context, name, key string) error {
	if _, err := s.d.ContainerInspect(ctx, name, client.ContainerInspectOptions{}); err == nil || !errdefs.IsNotFound(err) {
		return err
	}
	labels := map[string]string{labelAgent: key}
	if _, err := s.d.VolumeCreate(ctx, client.VolumeCreateOptions{Name: name, Labels: labels}); err != nil {
		return fmt.Errorf("make volume: %w", err)
	}
	empty, err := s.image(ctx, "keeper", "", writeEmpty)
	if err != nil {
		return err
	}
	_, err = s.d.ContainerCreate(ctx, client.ContainerCreateOptions{
		Name:   name,
		Config: &container.Config{Image: empty, Cmd: []string{"/never-started"}, Labels: labels},
		HostConfig: &container.HostConfig{
			NetworkMode: "none",
			Mounts:      []mount.Mount{{Type: mount.TypeVolume, Source: name, Target: volumeTarget}},
		},
	})
	return err
}

func writeEmpty(w io.Writer) error {
	t := tar.NewWriter(w)
	if err := t.WriteHeader(&tar.Header{Name: "volume/", Typeflag: tar.TypeDir, Mode: 0o755}); err != nil {
		return err
	}
	return t.Close()
}

// fill puts the agent's files and ours into a volume.
func (s *store) fill(ctx context.Context, name, image string, program []byte) error {
	var buf bytes.Buffer // an agent is small, and what fails half way is not sent
	t := tar.NewWriter(&buf)
	if err := addTree(ctx, t, image); err != nil {
		return brokenImage(err)
	}
	for _, f := range []struct {
		name string
		data []byte
	}{{inner.Argv0, program}, {marker, nil}} {
		if err := t.WriteHeader(&tar.Header{Name: f.name, Typeflag: tar.TypeReg, Mode: 0o555, Size: int64(len(f.data))}); err != nil {
			return err
		}
		if _, err := t.Write(f.data); err != nil {
			return err
		}
	}
	if err := t.Close(); err != nil {
		return err
	}
	_, err := s.d.CopyToContainer(ctx, name, client.CopyToContainerOptions{DestinationPath: volumeTarget, Content: &buf})
	return err
}
