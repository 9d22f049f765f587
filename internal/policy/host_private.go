package policy

import (
	"slices"
	"strings"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/policy/rules"
)

// blockedNames returns directories that hold keys wherever they are. Each is a sequence of path
// elements.
func blockedNames() []string {
	return []string{
		".ssh", ".gnupg", ".aws", ".azure", ".kube", ".docker", ".config/gcloud", ".config/gh",
		".password-store", ".local/share/keyrings", ".mozilla", ".config/google-chrome",
		".config/chromium", ".config/op", ".config/sops", ".config/rclone", ".local/share/kwalletd", ".pki", ".thunderbird",
	}
}

// blockedInHome returns directories of a home that hold credentials, or programs and settings that
// the user's own tools start from there. A project may have directories of the same names, so they
// count only in a home. A directory that contains one of them counts too.
func blockedInHome() []string {
	return []string{
		".config/systemd", ".config/autostart", ".config/environment.d", ".config/fish", ".config/git", ".config/containers",
		".config/helm", ".config/hub", ".config/glab-cli", ".config/doctl", ".config/pip", ".config/nix", ".config/Code",
		".local/bin", ".local/lib", ".local/share/applications", ".local/share/systemd", ".local/share/containers",
		".cargo", ".npm-global", ".gem", ".m2", ".gradle", ".nuget", ".terraform.d", ".oci", ".fly", ".ansible",
		".claude", ".codex", ".gemini", ".cursor", ".vscode", ".vscode-server", ".cursor-server", ".jupyter", ".ipython",
		".vim", ".emacs.d", ".oh-my-zsh", ".bashrc.d", ".android", ".bin", "bin",
	}
}

// homeOf returns the home directory that p, clean and absolute, is or is in, or "".
func (d *decision) homeOf(p string) string {
	for _, parent := range []string{"/home", d.moved()["/home"], "/Users"} {
		if below, ok := strings.CutPrefix(p, parent+"/"); ok && parent != "" {
			name, _, _ := strings.Cut(below, "/")
			return parent + "/" + name
		}
	}
	for _, home := range []string{"/root", d.moved()["/root"], d.cleanRule(d.facts.UserHome)} {
		if home != "" && home != "." && home != "/" && rules.Within(p, home) {
			return home
		}
	}
	return ""
}

// inBlockedName returns the rule of a directory that holds keys, or is in one that does, or "".
func inBlockedName(p string) string {
	elements := p + "/"
	for _, name := range blockedNames() {
		if strings.Contains(elements, "/"+name+"/") {
			return "blocked_path:" + name
		}
	}
	return ""
}

// blockedByName returns the rule that blocks a directory by its name, or "".
func (d *decision) blockedByName(p string) string {
	if rule := inBlockedName(p); rule != "" {
		return rule
	}
	home := d.homeOf(p)
	if home == "" || home == p {
		return ""
	}
	// A directory that could contain one of them is refused too, without a search.
	for _, name := range slices.Concat(blockedInHome(), blockedNames()) {
		if blocked := home + "/" + name; rules.Within(p, blocked) || rules.Within(blocked, p) {
			return "blocked_path:" + name
		}
	}
	return ""
}

// PrivateName is a file or directory that a sandbox does not get together with the directory that
// contains it.
type PrivateName struct {
	// Name is a sequence of path elements.
	Name string
	// Access is the access that remains.
	Access api.PathAccess
	// Home means that it counts only next to a directory .ssh or .gnupg, as in a home. A project
	// may have one of its own.
	Home bool
}

// PrivateNames returns what to look for in a directory of a request before it is judged.
func PrivateNames() []PrivateName {
	var out []PrivateName
	for _, name := range blockedNames() {
		// Projects have directories of these names without keys in them.
		switch name {
		case ".docker":
			name = ".docker/config.json"
		case ".kube":
			name = ".kube/config"
		}
		out = append(out, PrivateName{Name: name, Access: api.AccessNone})
	}
	for _, name := range []string{
		".netrc", ".git-credentials", ".pypirc", ".vault-token", ".pgpass", ".my.cnf",
		".claude/.credentials.json", ".codex/auth.json", ".cargo/credentials", ".cargo/credentials.toml", ".gem/credentials",
		".terraform.d/credentials.tfrc.json", ".config/git/credentials", ".config/hub", ".config/containers/auth.json",
	} {
		out = append(out, PrivateName{Name: name, Access: api.AccessNone})
	}
	for _, name := range []string{".npmrc", ".yarnrc.yml", ".m2/settings.xml", ".gradle/gradle.properties", ".bash_history", ".zsh_history"} {
		out = append(out, PrivateName{Name: name, Access: api.AccessNone, Home: true})
	}
	for _, name := range []string{
		".bashrc", ".bash_profile", ".bash_login", ".bash_logout", ".profile", ".zshrc", ".zshenv", ".zprofile", ".zlogin",
		".config/systemd", ".config/autostart", ".config/environment.d", ".config/fish", ".config/git", ".gitconfig",
		".local/bin", ".local/lib", ".local/share/applications", ".cargo", ".claude", ".codex", ".vimrc", ".vim", ".emacs.d", ".vscode-server",
	} {
		out = append(out, PrivateName{Name: name, Access: api.AccessRead, Home: true})
	}
	return out
}

// PrivatePath is a private file or directory that was found.
type PrivatePath struct {
	// Path is relative to the directory of the request.
	Path   string
	Name   string
	Access api.PathAccess
}

// cover converts the private paths that were found in a directory to rules of its mount.
func (d *decision) cover(field string, fact *DirFact, base api.PathAccess, set []api.PathRule) ([]api.PathRule, *api.Error) {
	if len(fact.Private) == 0 {
		return set, nil
	}
	covers := make([]api.PathRule, 0, len(fact.Private))
	for _, p := range fact.Private {
		if rules.AccessStrength(p.Access) >= rules.AccessStrength(rules.AccessAt(base, set, p.Path)) {
			continue
		}
		covers = append(covers, api.PathRule{Path: p.Path, Access: p.Access})
		d.adjust(field+".rules", string(rules.AccessAt(base, set, p.Path)), rules.Quote(p.Path)+": "+string(p.Access), "blocked_path:"+p.Name)
	}
	out := stricter(base, set, covers)
	if len(out) > rules.MaxPathRules {
		return nil, rules.Denied("blocked_path:"+fact.Private[0].Name, field, "%s holds %d files and directories with keys, and with its rules that is more than %d", field, len(fact.Private), rules.MaxPathRules).
			WithHint("name a directory below it that holds none")
	}
	return out, nil
}
