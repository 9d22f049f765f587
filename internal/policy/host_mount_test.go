package policy_test

import (
	"strconv"
	"strings"
	"testing"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/policy"
	"github.com/cloche-dev/cloche/internal/policy/rules"
)

// mountTable reads lines in the form of /proc/self/mountinfo. A "system" among the
// options says that what is mounted looks like the root of a machine.
func mountTable(t *testing.T, text string) []policy.HostMount {
	t.Helper()
	var out []policy.HostMount
	for line := range strings.Lines(strings.TrimSpace(text)) {
		f := strings.Fields(line)
		if len(f) == 0 {
			continue
		}
		id, err := strconv.Atoi(f[0])
		if err != nil || len(f) < 9 {
			t.Fatalf("the line %q is not one of mountinfo", line)
		}
		out = append(out, policy.HostMount{
			ID: id, Volume: f[2], Root: f[3], Point: f[4], Type: f[7], System: strings.Contains(f[5], "system"),
		})
	}
	return out
}

const (
	plainHost = `
		20 1 254:0 / / rw - ext4 /dev/vda
		21 20 0:5 / /dev rw - devtmpfs dev
		22 20 0:20 / /proc rw - proc proc
		23 20 0:21 / /run rw - tmpfs run
		24 23 0:40 / /run/user/1000 rw - tmpfs user
		25 20 254:16 / /data rw - ext4 /dev/vdb
		26 20 254:32 / /srv/disk rw,system - ext4 /dev/vdc
		27 20 254:48 / /home/carol rw - ext4 /dev/vdd
		28 20 254:0 /srv/etc-ssl /etc/ssl rw - ext4 /dev/vda
	`
	// The bind mounts of the attack, and harmless ones.
	binds = `
		40 20 254:0 / /mnt/b rw,system - ext4 /dev/vda
		41 20 254:0 /etc /mnt/conf rw - ext4 /dev/vda
		42 20 254:0 /etc/ssl/certs /mnt/certs rw - ext4 /dev/vda
		43 20 254:0 /home/alice/.local/share/cloche /mnt/cloche rw - ext4 /dev/vda
		44 20 254:0 /home/alice /mnt/alice rw - ext4 /dev/vda
		45 20 254:0 /home/bob/.ssh /mnt/x rw - ext4 /dev/vda
		46 20 0:40 / /mnt/user rw - tmpfs user
		47 20 0:40 /bus /mnt/bus rw - tmpfs user
		48 20 0:5 / /mnt/dev rw - devtmpfs dev
		49 20 254:48 / /mnt/carol rw - ext4 /dev/vdd
		50 20 254:48 /.gnupg /mnt/g rw - ext4 /dev/vdd
		51 20 254:0 /srv/private /mnt/private rw - ext4 /dev/vda
		52 20 254:0 /home/alice/project /mnt/project rw - ext4 /dev/vda
		53 20 254:16 /set /mnt/set rw - ext4 /dev/vdb
		54 20 254:0 /home/alice/project /home/alice/.local/share/cloche/run/m-1 rw - ext4 /dev/vda
		55 20 254:16 / /home/alice/.local/share/cloche/run/m-2 rw - ext4 /dev/vdb
		56 20 7:1 / /home/alice/.local/share/cloche/ws/one rw - ext4 /dev/loop1
		57 20 7:1 /upper /mnt/one rw - ext4 /dev/loop1
		58 20 254:0 /var/lib/docker/volumes/v/_data /mnt/volume rw - ext4 /dev/vda
		59 20 254:0 /home/alice/other/deep /home/alice/.ssh/deep rw - ext4 /dev/vda
	`
	btrfs = `
		20 1 0:30 /@ / rw - btrfs /dev/vda
		21 20 0:30 /@home /home rw - btrfs /dev/vda
		22 20 0:30 / /mnt/top rw - btrfs /dev/vda
		23 20 0:30 /@data /data rw - btrfs /dev/vda
		24 20 0:30 /@home/alice/.ssh /mnt/k rw - btrfs /dev/vda
		25 20 0:31 / /srv/pool rw - btrfs /dev/vdb
		26 20 0:30 /@snap/1 /mnt/snap rw,system - btrfs /dev/vda
	`
	// A container: its own root is an overlay, and it was given parts of its host.
	container = `
		20 1 0:60 / / rw - overlay overlay
		21 20 0:61 / /dev rw - tmpfs tmpfs
		22 20 254:0 /var/lib/docker/containers/1/hosts /etc/hosts rw - ext4 /dev/vda
		23 20 254:0 /var/lib/docker/volumes/home/_data /var/lib/cloche rw - ext4 /dev/vda
		24 20 254:0 / /host rw,system - ext4 /dev/vda
		25 24 0:21 / /host/run rw - tmpfs run
		26 24 254:16 / /host/data rw - ext4 /dev/vdb
		27 20 254:0 /etc /hostetc rw - ext4 /dev/vda
		28 20 254:0 /var /hostvar rw - ext4 /dev/vda
		29 20 254:0 /home/bob /bob rw - ext4 /dev/vda
		30 20 254:0 /home/bob/project /project rw - ext4 /dev/vda
		31 20 254:0 /var/lib/docker/volumes/set/_data /set rw - ext4 /dev/vda
		32 20 254:0 /var/lib/kubelet/pods/u/volumes/kubernetes.io~empty-dir/w /work rw - ext4 /dev/vda
		33 20 254:0 /var/lib/docker /store rw - ext4 /dev/vda
		34 20 254:64 /dev/tool /tool rw - ext4 /dev/vde
		35 20 254:0 /srv/cloche /cloche rw - ext4 /dev/vda
		36 20 0:5 / /hostdev rw - devtmpfs dev
	`
	// The root of a container whose files are a directory of its host's filesystem.
	rooted = `
		20 1 254:0 /var/lib/containers/storage/vfs/dir/1 / rw - ext4 /dev/vda
		21 20 254:0 /home/bob /bob rw - ext4 /dev/vda
	`
)

// TestBlockedUnderEveryName: a directory is judged by each name that a mount gives to it.
func TestBlockedUnderEveryName(t *testing.T) {
	for _, c := range []struct {
		host  string
		paths map[string]string // path to the rule that blocks it; empty is free, * is any of them
	}{
		{plainHost + binds, map[string]string{
			"/mnt/b":         "*",
			"/mnt/b/etc":     "blocked_path:/etc",
			"/mnt/b/etc/ssl": "blocked_path:/etc",
			"/mnt/b/home":    "blocked_path:/home", "/mnt/b/home/bob": "blocked_path:home_directory",
			"/mnt/b/home/bob/project": "",
			"/mnt/b/root":             "blocked_path:/root",
			"/mnt/b/var":              "blocked_path:/var/run",
			"/mnt/b/opt":              "",
			"/mnt/b/srv/private":      "blocked_paths[0]",
			"/mnt/conf":               "blocked_path:/etc",
			"/mnt/conf/x/y":           "blocked_path:/etc",
			"/mnt/certs":              "blocked_path:/etc",
			"/mnt/cloche":             "blocked_path:cloche_home",
			"/mnt/cloche/audit":       "blocked_path:cloche_home",
			"/mnt/alice":              "blocked_path:cloche_home",
			"/mnt/alice/.local":       "blocked_path:cloche_home",
			"/mnt/alice/project":      "",
			"/mnt/x":                  "blocked_path:.ssh",
			"/mnt/user":               "blocked_path:/run",
			"/mnt/bus":                "blocked_path:/run",
			"/mnt/dev":                "blocked_path:/dev",
			"/mnt/dev/shm":            "blocked_path:/dev",
			"/mnt/carol":              "blocked_path:home_directory",
			"/mnt/carol/project":      "",
			"/mnt/g":                  "blocked_path:.gnupg",
			"/mnt/private":            "blocked_paths[0]",
			"/mnt/project":            "",
			"/mnt/set":                "",
			"/mnt/one":                "blocked_path:cloche_home",
			"/mnt/volume":             "blocked_path:/var/lib/docker",
			// What is bound into a blocked directory is a part of it, wherever it stands.
			"/srv/etc-ssl":              "blocked_path:/etc",
			"/srv/etc-ssl/private":      "blocked_path:/etc",
			"/home/alice/other/deep":    "blocked_path:.ssh",
			"/home/alice/other":         "blocked_path:.ssh",
			"/home/alice/other/shallow": "", "/home/alice/project": "",
			// Cloche's own mounts of what sandboxes are given change nothing.
			"/data": "", "/data/set": "", "/data/dev/tool": "", "/data/run": "", "/data/var": "",
			// A disk with a system on it is a machine.
			"/srv/disk": "*", "/srv/disk/etc": "blocked_path:/etc", "/srv/disk/dev": "blocked_path:/dev",
			"/srv/disk/home/bob": "blocked_path:home_directory", "/srv/disk/home/bob/project": "",
			// One that does not look so still has no place for these.
			"/data/etc/ssl": "blocked_path:/etc", "/data/root": "blocked_path:/root", "/data/home/bob": "blocked_path:home_directory",
		}},
		{btrfs, map[string]string{
			"/mnt/top":                      "*",
			"/mnt/top/@":                    "*",
			"/mnt/top/@/etc":                "blocked_path:/etc",
			"/mnt/top/@home":                "blocked_path:/home",
			"/mnt/top/@home/bob":            "blocked_path:home_directory",
			"/mnt/top/@home/bob/x":          "",
			"/mnt/top/@home/alice/.ssh":     "blocked_path:.ssh",
			"/mnt/top/@data/set":            "",
			"/mnt/k":                        "blocked_path:.ssh",
			"/mnt/snap":                     "*",
			"/mnt/snap/etc":                 "blocked_path:/etc",
			"/data":                         "",
			"/home/alice/work":              "",
			"/srv/pool":                     "",
			"/srv/pool/@old/home/bob/.kube": "blocked_path:.kube",
		}},
		{container, map[string]string{
			"/host":                                  "*",
			"/host/etc":                              "blocked_path:/etc",
			"/host/etc/shadow.d":                     "blocked_path:/etc",
			"/host/run":                              "blocked_path:/run",
			"/host/run/user/1":                       "blocked_path:/run",
			"/host/home/bob":                         "blocked_path:home_directory",
			"/host/home/bob/project":                 "",
			"/host/data":                             "",
			"/host/data/set":                         "",
			"/host/var/lib/docker/volumes/set/_data": "blocked_path:/var/lib/docker",
			"/hostetc":                               "blocked_path:/etc",
			"/hostetc/ssl":                           "blocked_path:/etc",
			"/hostvar":                               "*",
			"/hostvar/lib":                           "*",
			"/hostvar/www":                           "",
			"/bob":                                   "blocked_path:home_directory",
			"/bob/project":                           "",
			"/project":                               "",
			"/set":                                   "",
			"/set/a":                                 "",
			"/work":                                  "",
			"/store":                                 "*",
			"/hostdev":                               "blocked_path:/dev",
			"/hostdev/shm":                           "blocked_path:/dev",
			"/store/volumes":                         "*",
			"/tool":                                  "",
			"/host/srv/x":                            "",
			"/cloche":                                "",
			"/host/srv/cloche":                       "",
		}},
		{rooted, map[string]string{
			"/srv/x": "", "/opt": "", "/bob": "blocked_path:home_directory", "/bob/x": "",
		}},
	} {
		for p, rule := range c.paths {
			for who, as := range map[string]policy.Caller{"root": root, "tenant": tenant} {
				f := everywhere(as.UID, p)
				f.Mounts = mountTable(t, c.host)
				set := mustParse(t, "mounts: [{root: /, write: true}]\nblocked_paths: [/srv/private]\n")
				err := decideDir(t, p, true, f, as, set)
				switch {
				case rule == "" && err != nil:
					t.Errorf("%s, %s: %v, want it granted", p, who, err)
				case rule != "" && api.CodeOf(err) != api.CodeDenied:
					t.Errorf("%s, %s: %v, want it refused by %s", p, who, err, rule)
				case rule != "" && rule != "*" && as.Operator && err.(*api.Error).Rule != rule:
					t.Errorf("%s: refused by %s, want %s", p, err.(*api.Error).Rule, rule)
				}
				if rule != "" && as.Operator {
					err := policy.DecidePack(api.ImagePackRequest{Paths: []string{p}}, f, as, set)
					if api.CodeOf(err) != api.CodeDenied {
						t.Errorf("an image is made of %s: %v", p, err)
					}
				}
			}
		}
	}
}

// TestHiddenMountIsJudged: the mount that shows a directory is the one that was found, also
// where another has a longer name.
func TestHiddenMountIsJudged(t *testing.T) {
	table := "20 1 254:0 / / rw - ext4 a\n30 20 254:0 /etc /mnt/x rw - ext4 a\n31 20 0:9 / /mnt/x rw - tmpfs b\n"
	for id, blocked := range map[int]bool{30: true, 31: false, 0: false} {
		f := everywhere(0, "/mnt/x")
		f.Mounts = mountTable(t, table)
		fact := f.Dirs["/mnt/x"]
		fact.Mount = id
		f.Dirs["/mnt/x"] = fact
		if err := decideDir(t, "/mnt/x", true, f, root, rules.Rules{}); blocked != (err != nil) {
			t.Errorf("through mount %d: %v, want blocked %t", id, err, blocked)
		}
	}
}

// TestMountsBelowAreJudgedWhereTheyAreSeen: without root an engine shows what is mounted
// below a directory.
func TestMountsBelowAreJudgedWhereTheyAreSeen(t *testing.T) {
	const host = "20 1 254:0 / / rw - ext4 a\n21 20 0:5 / /dev rw - devtmpfs d\n"
	for line, blocked := range map[string]bool{
		"30 20 254:0 /etc /srv/p/conf rw - ext4 a":     true,
		"30 20 0:5 / /srv/p/dev rw - devtmpfs d":       true,
		"30 20 254:9 / /srv/p/disk rw,system - ext4 b": true,
		"30 20 254:9 / /srv/p/disk rw - ext4 b":        false,
		"30 20 254:0 /opt/lib /srv/p/lib rw - ext4 a":  false,
		"30 20 254:0 /etc /srv/pp/conf rw - ext4 a":    false,
	} {
		for _, recursive := range []bool{true, false} {
			f := everywhere(0, "/srv/p")
			f.Mounts, f.Recursive = mountTable(t, host+line), recursive
			err := decideDir(t, "/srv/p", true, f, root, rules.Rules{})
			if (blocked && recursive) != (err != nil) {
				t.Errorf("%s, recursive %t: %v", line, recursive, err)
			}
		}
	}
}

// TestBuiltinPathsBlockWhereTheyLead: /home may be a symlink, and /etc is one on a Mac.
func TestBuiltinPathsBlockWhereTheyLead(t *testing.T) {
	for p, rule := range map[string]string{
		"/private/etc/ssl": "blocked_path:/etc", "/private": "blocked_path:/etc", "/var/home": "blocked_path:/home",
		"/var/home/bob": "blocked_path:home_directory", "/var/home/bob/x": "",
	} {
		f := everywhere(0, p)
		f.Dirs["/etc"], f.Dirs["/home"] = dir("/private/etc", 0), dir("/var/home", 0)
		err := decideDir(t, p, true, f, root, rules.Rules{})
		if rule == "" {
			if err != nil {
				t.Errorf("%s: %v", p, err)
			}
			continue
		}
		want{code: api.CodeDenied, rule: rule}.check(t, err)
	}
}
