package build

import (
	"regexp"
	"strings"

	"github.com/cloche-dev/cloche/api"
)

// maxPackages bounds a list of packages.
const maxPackages = 500

// packageName are the names, versions and options of packages that installers take. None is an option of the
// installer, and none has a character that a shell reads.
var packageName = regexp.MustCompile(`^[A-Za-z0-9@][A-Za-z0-9@._+~/:,=<>!\[\]^-]*$`)

// Packages is the Dockerfile of a list of packages. Each installer has a cache of its downloads.
func Packages(p api.ImagePackages) (string, error) {
	total := len(p.Apt) + len(p.Pip) + len(p.Npm)
	if total == 0 || total > maxPackages {
		return "", api.Invalid("packages", "%d packages were asked for", total).WithHint("1 to %d", maxPackages)
	}
	for _, list := range [][]string{p.Apt, p.Pip, p.Npm} {
		for _, name := range list {
			if len(name) > 200 || !packageName.MatchString(name) {
				return "", api.Invalid("packages", "%.60q is not the name of a package", name).WithHint("write it as the installer takes it, such as numpy==2.4.0")
			}
		}
	}
	from := p.From
	if from == "" {
		from = api.DefaultImage
	}
	if strings.ContainsAny(from, " \t\r\n$\\#") {
		return "", api.Invalid("packages.from", "%.60q is not the name of an image", from)
	}
	var b strings.Builder
	b.WriteString("FROM " + from + "\n")
	if len(p.Apt) > 0 {
		if from == api.DefaultImage {
			return "", api.Errorf(api.CodeUnsupported, "apt cannot install into image %q: the tools of this machine are read-only", from).
				WithHint("name an image of Debian or Ubuntu with --from, or install the package on the machine")
		}
		b.WriteString("RUN --mount=type=cache,target=/var/cache/apt/archives,id=apt " +
			"rm -f /etc/apt/apt.conf.d/docker-clean && apt-get update && " +
			"DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends " + quote(p.Apt) + " && rm -rf /var/lib/apt/lists/*\n")
	}
	if len(p.Pip) > 0 {
		b.WriteString("ENV PIP_BREAK_SYSTEM_PACKAGES=1 PIP_ROOT_USER_ACTION=ignore PIP_DISABLE_PIP_VERSION_CHECK=1\n" +
			"RUN --mount=type=cache,target=/root/.cache/pip,id=pip python3 -m pip install " + quote(p.Pip) + "\n")
	}
	if len(p.Npm) > 0 {
		prefix := ""
		if from == api.DefaultImage {
			b.WriteString("ENV PATH=/root/.local/bin:$PATH NODE_PATH=/root/.local/lib/node_modules\n")
			prefix = "--prefix /root/.local "
		}
		b.WriteString("RUN --mount=type=cache,target=/root/.npm,id=npm npm install --global " + prefix + quote(p.Npm) + "\n")
	}
	return b.String(), nil
}

// quote quotes words for a shell. None has a quote.
func quote(words []string) string { return "'" + strings.Join(words, "' '") + "'" }
