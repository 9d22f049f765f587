//go:build linux

package pathwalk

import (
	"errors"
	"path"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/cloche-dev/cloche/api"
)

// CheckPath refuses a path that is not absolute, or that no kernel takes. Field names it in the error.
func CheckPath(field, name string) error {
	switch {
	case name == "":
		return api.Invalid(field, "the path is empty").WithHint("it is an absolute path inside the sandbox")
	case !strings.HasPrefix(name, "/"):
		return api.Invalid(field, "path %.200q is relative", name).WithHint("it is an absolute path inside the sandbox")
	case strings.IndexByte(name, 0) >= 0:
		return api.Invalid(field, "path %.200q holds a NUL byte", name)
	case len(name) >= unix.PathMax:
		return api.Invalid(field, "a path of %d bytes is longer than the kernel's %d", len(name), unix.PathMax-1)
	}
	return nil
}

// FileError classifies an error of the file system.
func FileError(verb, name string, err error) error {
	if _, ok := errors.AsType[*api.Error](err); ok {
		return err
	}
	code, what := api.CodeInternal, "failed"
	var e syscall.Errno
	if errors.As(err, &e) {
		what = e.Error()
		switch e {
		case unix.ENOENT:
			code, what = api.CodeNotFound, "it does not exist"
		case unix.EEXIST:
			code, what = api.CodeExists, "it exists"
		case unix.ENOTEMPTY:
			code, what = api.CodeState, "the directory is not empty"
		case unix.ENOTDIR:
			code, what = api.CodeInvalid, "a part of the path is not a directory"
		case unix.EISDIR:
			code, what = api.CodeInvalid, "it is a directory"
		case unix.ELOOP:
			code, what = api.CodeInvalid, "there are too many links in it, or one into /proc"
		case unix.ENAMETOOLONG, unix.EINVAL, unix.EXDEV:
			code = api.CodeInvalid
		case unix.EROFS:
			code, what = api.CodeState, "it is read-only in this sandbox"
		case unix.ENOSPC, unix.EDQUOT:
			code, what = api.CodeNoCapacity, "the disk limit of this sandbox is reached"
		case unix.EFBIG:
			code = api.CodeTooLarge
		case unix.EACCES, unix.EPERM, unix.EBUSY, unix.ETXTBSY, unix.ENXIO, unix.ENODEV:
			code = api.CodeState
		}
	}
	ce := api.Errorf(code, "%s %.500q: %s", verb, name, what).WithCause(err)
	ce.Errno = unix.ErrnoName(e)
	if code == api.CodeInvalid {
		ce.Field = "path"
	}
	return ce
}

// MkdirAll makes a directory with exactly that mode, and missing parents.
func MkdirAll(name string, mode uint32) error {
	err := unix.Mkdir(name, mode&0o777)
	switch err {
	case nil:
		if mode&^0o022 != mode || mode > 0o777 {
			return setModeAt(unix.AT_FDCWD, name, mode)
		}
		return nil
	case unix.EEXIST:
		var st unix.Stat_t
		if serr := unix.Stat(name, &st); serr != nil {
			return serr
		}
		if st.Mode&unix.S_IFMT != unix.S_IFDIR {
			return err
		}
		return nil
	case unix.ENOENT:
		parent := path.Dir(strings.TrimRight(name, "/"))
		if parent == name || parent == "/" {
			return err
		}
		if perr := MkdirAll(parent, 0o755); perr != nil {
			return perr
		}
		return MkdirAll(name, mode)
	}
	return err
}
