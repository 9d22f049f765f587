package envd

import (
	"context"
	"io/fs"
	"path"
	"strconv"
	"strings"

	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/envdpb"
)

const (
	// maxLinks bounds the symlinks on the way to a file, as the kernel does.
	maxLinks = 40
	// maxParts bounds the elements of a path whose symlinks are followed.
	maxParts = 256
)

// view is the files of a sandbox as one user sees them.
type view struct {
	core Core
	who  *actor
}

func (v *view) stat(ctx context.Context, name string, follow bool) (api.FileInfo, error) {
	return v.core.StatFile(ctx, v.who.sb.Caller, v.who.sb.Ref, v.who.place(name), follow)
}

// entry describes one file.
func (v *view) entry(ctx context.Context, name string) (*envdpb.EntryInfo, error) {
	info, err := v.stat(ctx, name, false)
	if err != nil {
		return nil, err
	}
	return v.describe(ctx, name, &info)
}

// describe makes the entry of a file. For a symlink, type and mode are those of the file that it
// leads to, and the rest is its own.
func (v *view) describe(ctx context.Context, name string, info *api.FileInfo) (*envdpb.EntryInfo, error) {
	e := &envdpb.EntryInfo{
		Name: validText(path.Base(name)), Path: validText(name), Type: typeOf(info.Type), Size: info.Size, Mode: info.Mode & 0o777,
		Permissions: modeOf(info).String(), Owner: ownerOf(info.User, info.UID), Group: ownerOf(info.Group, info.GID),
		ModifiedTime: timestamppb.New(info.ModTime),
	}
	if info.Type != api.TypeSymlink {
		return e, nil
	}
	e.IsSymlink, e.Type, e.SymlinkTarget = true, envdpb.FileType_FILE_TYPE_UNSPECIFIED, &e.Path
	target, err := v.stat(ctx, name, true)
	if err != nil {
		if errnoOf(err) == "" {
			return nil, err
		}
		return e, nil // it leads to nothing that this user can see
	}
	e.Type, e.Mode = typeOf(target.Type), target.Mode&0o777
	if real, ok := v.realPath(ctx, name); ok {
		e.SymlinkTarget = new(validText(real))
	}
	return e, nil
}

// realPath follows all symlinks of a path; false if that is not possible.
func (v *view) realPath(ctx context.Context, name string) (string, bool) {
	done, rest := "/", strings.Split(strings.Trim(name, "/"), "/")
	for links, parts := 0, 0; len(rest) > 0; parts++ {
		part := rest[0]
		rest = rest[1:]
		switch part {
		case "", ".":
			continue
		case "..":
			done = path.Dir(done)
			continue
		}
		next := path.Join(done, part)
		info, err := v.stat(ctx, next, false)
		if err != nil || parts > maxParts {
			return "", false
		}
		if info.Type != api.TypeSymlink {
			done = next
			continue
		}
		if links++; links > maxLinks {
			return "", false
		}
		if strings.HasPrefix(info.LinkTarget, "/") {
			done = "/"
		}
		rest = append(strings.Split(info.LinkTarget, "/"), rest...)
	}
	return done, true
}

// nameOf is the name of a file as the sandbox has it.
func nameOf(info *api.FileInfo) string {
	if len(info.NameBytes) > 0 {
		return string(info.NameBytes)
	}
	return info.Name
}

// validText is text that a message can hold.
func validText(s string) string { return strings.ToValidUTF8(s, "\uFFFD") }

func typeOf(t api.FileType) envdpb.FileType {
	switch t {
	case api.TypeFile:
		return envdpb.FileType_FILE_TYPE_FILE
	case api.TypeDir:
		return envdpb.FileType_FILE_TYPE_DIRECTORY
	case api.TypeSymlink:
		return envdpb.FileType_FILE_TYPE_SYMLINK
	case api.TypeOther:
	}
	return envdpb.FileType_FILE_TYPE_UNSPECIFIED
}

// modeOf is the mode of a file as Go has it, whose text clients show.
func modeOf(info *api.FileInfo) fs.FileMode {
	m := fs.FileMode(info.Mode & 0o777)
	for _, bit := range []struct {
		unix uint32
		mode fs.FileMode
	}{{0o4000, fs.ModeSetuid}, {0o2000, fs.ModeSetgid}, {0o1000, fs.ModeSticky}} {
		if info.Mode&bit.unix != 0 {
			m |= bit.mode
		}
	}
	switch info.Type {
	case api.TypeDir:
		m |= fs.ModeDir
	case api.TypeSymlink:
		m |= fs.ModeSymlink
	case api.TypeOther:
		m |= fs.ModeIrregular
	case api.TypeFile:
	}
	return m
}

// ownerOf is the name of an owner, or its number.
func ownerOf(name string, id uint32) string {
	if name != "" {
		return name
	}
	return strconv.FormatUint(uint64(id), 10)
}
