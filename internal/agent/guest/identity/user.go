//go:build linux

package identity

import (
	"bufio"
	"bytes"
	"io"
	"os"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/cloche-dev/cloche/api"
)

// User is who a process runs as.
type User struct {
	UID, GID uint32
	Groups   []uint32
	name     string
	Home     string
	// shown is set for a user of a sandbox with one id only: uid and gid are then those of
	// root, without its capabilities, and this is what programs see in their place.
	Shown *ShownIDs
}

// Root reports whether programs of the user have root's capabilities.
func (u User) Root() bool { return u.UID == 0 && u.Shown == nil }

// IDs are what the user's programs see.
func (u User) IDs() ShownIDs {
	if u.Shown != nil {
		return *u.Shown
	}
	return ShownIDs{u.UID, u.GID}
}

const (
	maxAccountFile = 4 << 20
	maxGroups      = 1024
)

// Users resolves names with the image's own /etc/passwd and /etc/group.
type Users struct {
	Single bool   // there is one id, which is root's
	Normal string // for an empty name
	// adopts: the kernel has more ids than the sandbox, and files may belong to them.
	Adopts bool
	// self is set for an agent without privilege: who it is.
	Self *User
}

// Lookup resolves "name", "uid", either with ":group" or ":gid", or "".
func (us *Users) Lookup(spec string) (User, error) {
	if spec == "" {
		spec = us.Normal
	}
	if us.Self != nil {
		// Where one user is all there is, root of the sandbox is that user.
		if spec == "" || us.Single && namesRoot(spec) || spec == strconv.FormatUint(uint64(us.Self.UID), 10) {
			return *us.Self, nil
		}
		return User{}, api.Invalid("user", "user %q: this agent runs without privilege and can start processes as its own user only", spec).
			WithHint("leave user empty")
	}
	if spec == "" || namesRoot(spec) {
		return User{Groups: []uint32{0}, name: "root", Home: "/root"}, nil
	}
	name, group, hasGroup := strings.Cut(spec, ":")
	u, err := us.account(name)
	if err != nil {
		return User{}, err
	}
	if hasGroup {
		if u.GID, err = us.group(group); err != nil {
			return User{}, err
		}
	}
	if us.Single {
		return us.shown(u, spec)
	}
	u.Groups = []uint32{u.GID}
	if u.name != "" {
		for _, f := range accountLines("/etc/group", 4) {
			gid, err := strconv.ParseUint(f[2], 10, 32)
			if err != nil || len(u.Groups) == maxGroups {
				continue
			}
			if slices.Contains(strings.Split(f[3], ","), u.name) && !slices.Contains(u.Groups, uint32(gid)) {
				u.Groups = append(u.Groups, uint32(gid))
			}
		}
	}
	return u, nil
}

// shown is a user of a sandbox with one id only, as that id under another number.
func (us *Users) shown(u User, spec string) (User, error) {
	if u.UID == 0 && u.GID == 0 {
		return User{Groups: []uint32{0}, name: u.name, Home: u.Home}, nil
	}
	if u.UID == 0 {
		return User{}, api.Invalid("user", "user %q: root of this sandbox has no other group, because its daemon does not run as root", spec).
			WithHint("use root, another user with that group, or a daemon that runs as root")
	}
	if u.Home != "/" {
		us.Adopt(u.Home, u.UID)
	}
	return User{Groups: []uint32{0}, name: u.name, Home: u.Home, Shown: &ShownIDs{u.UID, u.GID}}, nil
}

// namesRoot reports whether a user is named that needs no account of the image.
func namesRoot(spec string) bool {
	switch spec {
	case "root", "0", "0:0", "root:root":
		return true
	}
	return false
}

// Named adds what the image calls the users and the groups of files.
func Named(files []api.FileInfo) []api.FileInfo {
	us, gs := accountNames("/etc/passwd"), accountNames("/etc/group")
	for i := range files {
		files[i].User, files[i].Group = us[files[i].UID], gs[files[i].GID]
	}
	return files
}

// NameOf is what the image calls a user, or the number of one without an account.
func NameOf(uid uint32) string {
	if name := accountNames("/etc/passwd")[uid]; name != "" {
		return name
	}
	return strconv.FormatUint(uint64(uid), 10)
}

// accountNames are the names of a file of accounts by their numbers; of several with one
// number, the first.
func accountNames(file string) map[uint32]string {
	names := map[uint32]string{}
	for _, f := range accountLines(file, 3) {
		id, err := strconv.ParseUint(f[2], 10, 32)
		if _, dup := names[uint32(id)]; err == nil && !dup {
			names[uint32(id)] = strings.ToValidUTF8(f[0], "\uFFFD")
		}
	}
	return names
}

// account finds the user with that name or number. A number needs no entry.
func (us *Users) account(name string) (User, error) {
	number, numErr := parseID(name)
	for _, f := range accountLines("/etc/passwd", 6) {
		uid, err1 := strconv.ParseUint(f[2], 10, 32)
		gid, err2 := strconv.ParseUint(f[3], 10, 32)
		if err1 != nil || err2 != nil || uid >= AgentID || gid >= AgentID {
			continue
		}
		if f[0] == name || (numErr == nil && uint32(uid) == number) {
			return User{UID: uint32(uid), GID: uint32(gid), name: f[0], Home: f[5]}, nil
		}
	}
	if numErr != nil {
		return User{}, api.Invalid("user", "user %q is not in the image's /etc/passwd", name).
			WithHint("use a name from it, or a number")
	}
	return User{UID: number, Home: "/"}, nil
}

func (us *Users) group(name string) (uint32, error) {
	number, err := parseID(name)
	if err == nil {
		return number, nil
	}
	for _, f := range accountLines("/etc/group", 3) {
		if gid, err := strconv.ParseUint(f[2], 10, 32); err == nil && f[0] == name && gid < AgentID {
			return uint32(gid), nil
		}
	}
	return 0, api.Invalid("user", "group %q is not in the image's /etc/group", name).
		WithHint("use a name from it, or a number")
}

// parseID reads a number below the agent's own.
func parseID(s string) (uint32, error) {
	n, err := strconv.ParseUint(s, 10, 32)
	if err == nil && n >= AgentID {
		err = strconv.ErrRange
	}
	return uint32(n), err
}

// accountLines reads a file of colon-separated lines with at least n fields. It
// belongs to the image: it may be missing, huge or no file at all.
func accountLines(path string, n int) [][]string {
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil
	}
	f := os.NewFile(uintptr(fd), path)
	defer f.Close()
	var st unix.Stat_t
	if unix.Fstat(fd, &st) != nil || st.Mode&unix.S_IFMT != unix.S_IFREG {
		return nil
	}
	return parseAccounts(io.LimitReader(f, maxAccountFile), n)
}

func parseAccounts(r io.Reader, n int) [][]string {
	var lines [][]string
	sc := bufio.NewScanner(r)
	sc.Buffer(nil, 64<<10)
	for sc.Scan() {
		line := bytes.TrimSpace(sc.Bytes())
		if len(line) == 0 || line[0] == '#' {
			continue
		}
		if f := strings.Split(string(line), ":"); len(f) >= n {
			lines = append(lines, f)
		}
	}
	return lines
}

// ShownIDs are what a program sees as its own ids.
type ShownIDs struct{ UID, GID uint32 }

// Environment adds what a login would set and the caller has not: programs look
// for their settings under HOME and give up without it.
func (u User) Environment(env []string) []string {
	for _, e := range []struct {
		name  string
		value func() string
	}{{"HOME", u.writableHome}, {"USER", u.login}, {"LOGNAME", u.login}} {
		if HasVar(env, e.name) {
			continue
		}
		if value := e.value(); value != "" {
			env = append(env, e.name+"="+value)
		}
	}
	return env
}

// HasVar reports whether an environment sets a variable.
func HasVar(env []string, name string) bool {
	return slices.ContainsFunc(env, func(e string) bool { return strings.HasPrefix(e, name+"=") })
}
