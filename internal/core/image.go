package core

import (
	"cmp"
	"context"
	"errors"
	"io"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/core/hostfacts"
	"github.com/cloche-dev/cloche/internal/image"
	"github.com/cloche-dev/cloche/internal/policy"
)

const (
	// pullTimeout limits one pull. A silent registry times out much earlier. What was downloaded
	// is kept for the next pull.
	pullTimeout = 30 * time.Minute
	// pullEventEvery is the interval of events during a pull.
	pullEventEvery = 3 * time.Second
	// hostUnused is how long an unused old version of the host image is kept.
	hostUnused = 7 * 24 * time.Hour
)

// pullKey is the context key of the function that gets pull progress.
type pullKey struct{}

// WithPullProgress returns a context in which pulls report their progress to fn, one call at a
// time.
func WithPullProgress(ctx context.Context, fn func(api.PullProgress)) context.Context {
	return context.WithValue(ctx, pullKey{}, fn)
}

// PullProgress returns the function that gets pull progress. It is never nil.
func PullProgress(ctx context.Context) func(api.PullProgress) {
	if fn, ok := ctx.Value(pullKey{}).(func(api.PullProgress)); ok && fn != nil {
		return fn
	}
	return func(api.PullProgress) {}
}

// Images returns the root filesystems that the caller can name in a create.
func (s *Service) Images(_ context.Context, caller Caller) (api.ImageList, error) {
	if err := policy.AuthorizeHost(caller, policy.VerbImages); err != nil {
		return api.ImageList{}, err
	}
	list := api.ImageList{Images: []api.Image{}}
	for _, img := range s.opts.Images.List() {
		if policy.SeesImage(caller, s.rules(), img.Digest, img.Name) {
			list.Images = append(list.Images, img)
		}
	}
	return list, nil
}

// InspectImage returns the record of a stored image.
func (s *Service) InspectImage(_ context.Context, caller Caller, ref string) (api.Image, error) {
	if err := policy.AuthorizeHost(caller, policy.VerbInspectImage); err != nil {
		return api.Image{}, err
	}
	rules := s.rules()
	is := cmp.Or(rules.PullOf(ref), ref) // the image store refuses an invalid reference
	img, err := s.opts.Images.Inspect(is)
	if err != nil {
		return api.Image{}, err
	}
	// An image that is named is judged by that name, and one given by digest by any of its names.
	names := []string{is}
	if api.ValidDigest(is) {
		names = s.opts.Images.Names(is)
	}
	seen := slices.IndexFunc(names, func(name string) bool { return policy.SeesImage(caller, rules, img.Digest, name) })
	if seen < 0 && !policy.SeesImage(caller, rules, img.Digest, names...) {
		return api.Image{}, image.NotHere(is)
	}
	if seen >= 0 && api.ValidDigest(is) {
		img.Name = names[seen] // not the name that another tenant has for it
	}
	return img, nil
}

// PullImage pulls an image, even if one of that name is stored.
func (s *Service) PullImage(ctx context.Context, caller Caller, req api.PullRequest) (api.Image, error) {
	d := details{"image": bound(req.Image)}
	if req.Platform != "" {
		d["platform"] = bound(req.Platform)
	}
	rules := s.rules()
	grant, err := policy.DecidePull(req, s.imageFact(rules.PullOf(req.Image)), caller, rules)
	if err != nil {
		return api.Image{}, s.refused(ctx, caller, policy.VerbPullImage, "", d, err)
	}
	if err := s.intend(ctx, caller, policy.VerbPullImage, "", d); err != nil {
		return api.Image{}, err
	}
	img, err := s.pull(ctx, caller, grant, req.Platform)
	if err == nil {
		d["image_digest"] = img.Digest
	}
	return img, s.done(ctx, caller, policy.VerbPullImage, "", d, err)
}

// pull pulls a granted image and publishes events about it.
func (s *Service) pull(ctx context.Context, caller Caller, grant policy.ImageGrant, platform string) (api.Image, error) {
	ctx, cancel := context.WithTimeout(ctx, pullTimeout)
	defer cancel()
	about := api.Event{Tenant: caller.Tenant, Image: grant.Ref}
	tell := PullProgress(ctx)
	var last time.Time
	begin := about
	begin.Kind = api.EventImagePulling
	most, _ := s.rules().ImageStoreMax()
	img, err := s.opts.Images.Pull(ctx, grant.Ref, image.PullOptions{
		Platform: platform, Missing: grant.Pull == api.PullMissing, Check: grant.Check, MaxBytes: max(most, 0),
		Progress: func(p api.PullProgress) {
			tell(p)
			if now := time.Now(); now.Sub(last) >= pullEventEvery && p.Phase != api.PullDone {
				last, begin.Pull = now, &p
				s.publishEvent(begin)
			}
		},
	})
	if err != nil {
		about.Kind, about.Reason = api.EventImageFailed, plainReason(err)
		s.publishEvent(about)
		return api.Image{}, err
	}
	about.Kind = api.EventImagePulled
	s.publishEvent(about)
	defer s.opts.Images.Hold(img.Digest)()
	s.capImages(ctx)
	return img, nil
}

// fetch makes the image of a create available as far as policy allows, and keeps it from being
// removed until release is called.
func (s *Service) fetch(ctx context.Context, caller Caller, permit policy.Permit, progress func(step string)) (_ policy.Permit, release func(), err error) {
	grant := permit.Image()
	if grant.Ref == api.DefaultImage || permit.Tier() == api.TierRemote {
		return permit, func() {}, nil
	}
	img, _, here := s.opts.Images.Look(grant.Ref)
	if grant.Pull == api.PullAlways || grant.Pull == api.PullMissing && !here {
		if progress != nil {
			progress("image")
		}
		if img, err = s.pull(ctx, caller, grant, ""); err != nil {
			return permit, nil, err
		}
	}
	if img.Digest == "" {
		return permit, func() {}, nil // the image store reports what is missing
	}
	return permit.WithoutPull(), s.opts.Images.Hold(img.Digest), nil
}

// imageCommand returns the default command of an image.
func (s *Service) imageCommand(ref string) ([]string, error) {
	img, err := s.opts.Images.Inspect(ref)
	if err != nil {
		return nil, err
	}
	if img.Config != nil {
		if argv := img.Config.Command(); len(argv) > 0 && argv[0] != "" {
			return argv, nil
		}
	}
	return nil, api.Invalid("argv", "there is nothing to run, and image %q does not say what it would run", bound(ref)).
		WithHint("set exactly one of argv, shell and python")
}

// imageFact returns what policy must know about an image.
func (s *Service) imageFact(ref string) policy.ImageFact {
	switch ref {
	case "":
		return policy.ImageFact{}
	case api.DefaultImage:
		return policy.ImageFact{Here: true}
	}
	img, names, here := s.opts.Images.Look(ref)
	return policy.ImageFact{Here: here, Digest: img.Digest, Index: img.IndexDigest, Names: names}
}

// ImportImage imports an image from an archive.
func (s *Service) ImportImage(ctx context.Context, caller Caller, o api.ImportOptions, r io.Reader) (api.Image, error) {
	d := details{"image": bound(o.Name)}
	return s.makeImage(ctx, caller, policy.VerbImportImage, d, policy.AuthorizeHost(caller, policy.VerbImportImage), func() (api.Image, error) {
		return s.opts.Images.ImportStream(ctx, o.Name, r, image.ImportOptions{
			Format: o.Format, Ref: o.Ref, Platform: o.Platform, Progress: PullProgress(ctx),
		})
	})
}

// PackImage makes an image from files of this machine.
func (s *Service) PackImage(ctx context.Context, caller Caller, req api.ImagePackRequest) (api.Image, error) {
	facts := policy.Facts{Home: s.opts.Home, UserHome: s.opts.UserHome, SocketDirs: s.opts.SocketDirs, Dirs: map[string]policy.DirFact{}}
	if caller.Operator {
		for _, p := range req.Paths {
			facts.Dirs[p] = hostfacts.Look(p)
		}
	}
	err := hostfacts.LookAtMounts(&facts)
	if err == nil {
		err = policy.DecidePack(req, facts, caller, s.rules())
	}
	d := details{"image": bound(req.Name), "paths": bound(strings.Join(req.Paths, " "))}
	return s.makeImage(ctx, caller, policy.VerbPackImage, d, err, func() (api.Image, error) {
		o := image.ImportOptions{Progress: PullProgress(ctx)}
		if req.Config != nil {
			o.Config = *req.Config
		}
		return s.opts.Images.BuildBase(ctx, req.Name, req.Paths, o)
	})
}

// makeImage creates an image that does not come from a registry, unless policy has refused it.
func (s *Service) makeImage(ctx context.Context, caller Caller, verb policy.Verb, d details, refusal error, do func() (api.Image, error)) (api.Image, error) {
	if refusal != nil {
		return api.Image{}, s.refused(ctx, caller, verb, "", d, refusal)
	}
	if err := s.intend(ctx, caller, verb, "", d); err != nil {
		return api.Image{}, err
	}
	img, err := do()
	if err == nil {
		d["image"], d["image_digest"] = img.Name, img.Digest
		release := s.opts.Images.Hold(img.Digest)
		s.capImages(ctx)
		release()
	}
	return img, s.done(ctx, caller, verb, "", d, err)
}

// RemoveImage removes an image, or one of its names.
func (s *Service) RemoveImage(ctx context.Context, caller Caller, ref string) error {
	d := details{"image": bound(ref)}
	if err := policy.AuthorizeRemoveImage(caller, ref); err != nil {
		return s.refused(ctx, caller, policy.VerbRemoveImage, "", d, err)
	}
	if err := s.intend(ctx, caller, policy.VerbRemoveImage, "", d); err != nil {
		return err
	}
	inUse, err := s.imagesInUse()
	if err == nil {
		err = s.opts.Images.Remove(ctx, ref, inUse)
	}
	if err == nil {
		s.publishEvent(api.Event{Kind: api.EventImageRemoved, Tenant: caller.Tenant, Image: ref})
	}
	return s.done(ctx, caller, policy.VerbRemoveImage, "", d, err)
}

// PruneImages removes images to free disk space.
func (s *Service) PruneImages(ctx context.Context, caller Caller, req api.ImagePruneRequest) (api.ImagePruneResult, error) {
	none := api.ImagePruneResult{Removed: []api.Image{}}
	d := details{"dry_run": strconv.FormatBool(req.DryRun)}
	most, capped := s.rules().ImageStoreMax()
	err := policy.AuthorizeHost(caller, policy.VerbPruneImages)
	switch {
	case err != nil:
	case req.MaxBytes != nil && *req.MaxBytes < 0:
		err = api.Invalid("max_bytes", "images cannot occupy %d bytes", *req.MaxBytes).WithHint("0 keeps only what is in use")
	case req.MaxBytes != nil:
		most = *req.MaxBytes
	case !capped:
		err = api.Invalid("max_bytes", "it is not said how much images may occupy").
			WithHint("give a size, where 0 keeps only what is in use, or set image_store.max in the policy file")
	}
	if err != nil {
		return none, s.refused(ctx, caller, policy.VerbPruneImages, "", d, err)
	}
	d["max_bytes"] = strconv.FormatInt(most, 10)
	if err := s.intend(ctx, caller, policy.VerbPruneImages, "", d); err != nil {
		return none, err
	}
	out, err := s.prune(ctx, most, req.DryRun)
	d["removed"], d["freed_bytes"] = strconv.Itoa(len(out.Removed)), strconv.FormatInt(out.FreedBytes, 10)
	return out, s.done(ctx, caller, policy.VerbPruneImages, "", d, err)
}

// prune removes unused images until the rest use at most max bytes.
func (s *Service) prune(ctx context.Context, most int64, dryRun bool) (api.ImagePruneResult, error) {
	inUse, err := s.imagesInUse()
	if err != nil {
		return api.ImagePruneResult{Removed: []api.Image{}}, err
	}
	out, err := s.opts.Images.Prune(ctx, image.PruneOptions{MaxBytes: most, InUse: inUse, DryRun: dryRun})
	if !dryRun {
		for _, img := range out.Removed {
			s.publishEvent(api.Event{Kind: api.EventImageRemoved, Tenant: policy.LocalTenant, Image: img.Name, Reason: "images may occupy only so much"})
		}
	}
	return out, err
}

// imagesInUse returns the digests of images that must be kept: those of sandboxes, including
// stopped ones and those of other owners, and of everything else that the daemon has made from
// images.
func (s *Service) imagesInUse() ([]string, error) {
	inUse := s.opts.Sandboxes.ImagesInUse()
	if s.opts.ImagePins == nil {
		return inUse, nil
	}
	pins, err := s.opts.ImagePins()
	if err != nil {
		return nil, api.Errorf(api.CodeInternal, "it cannot be told which images are in use").
			WithHint("the daemon's log says which record cannot be read").WithCause(err)
	}
	return append(inUse, pins...), nil
}

// capImages enforces the operator's limit for images. Its failure does not fail the operation that
// added the last image.
func (s *Service) capImages(ctx context.Context) {
	most, capped := s.rules().ImageStoreMax()
	if !capped {
		return
	}
	if used, err := s.opts.Images.Usage(); err == nil && used <= most {
		return
	}
	out, err := s.prune(context.WithoutCancel(ctx), most, false)
	switch {
	case err != nil:
		s.log.Error("keep images to their bound", "error", err)
	case len(out.Removed) > 0:
		s.log.Info("removed images to keep to the bound", "images", len(out.Removed), "freed", out.FreedBytes, "occupied", out.UsedBytes, "bound", most)
	}
}

// TidyImages removes what a killed process left behind and images unused for a long time, and
// enforces the operator's limit on the rest.
func (s *Service) TidyImages(ctx context.Context) {
	if _, err := s.opts.Images.Sweep(ctx, nil, hostUnused); err != nil {
		s.log.Warn("sweep images", "error", err)
	}
	s.capImages(ctx)
}

// publishEvent publishes an event to those who follow.
func (s *Service) publishEvent(e api.Event) {
	if s.opts.Events != nil {
		s.opts.Events.Publish(e)
	}
}

// plainReason returns the text of an error for an event, without the hint.
func plainReason(err error) string {
	if e, ok := errors.AsType[*api.Error](err); ok {
		return e.Message
	}
	return "an internal error"
}

// bound shortens a caller's value for a record.
func bound(s string) string {
	const limit = 512
	if len(s) <= limit {
		return s
	}
	return s[:limit] + "…"
}
