package rule

// Bundle is a named list of rules for a service that many sandboxes need.
type Bundle struct {
	Name string
	// Version grows when the list changes, so that a record says which was meant.
	Version int
	// About is one sentence on what it opens, and on what it cannot keep apart.
	About string
	Hosts []string
}

// Rules are the rules of b, each with an id that names the bundle.
func (b Bundle) Rules() []Rule {
	rules := make([]Rule, 0, len(b.Hosts))
	for _, h := range b.Hosts {
		rules = append(rules, Rule{ID: "bundle." + b.Name + "/" + h, Host: h})
	}
	return rules
}

// Bundles are the bundles that come with cloche, in order of their names.
func Bundles() []Bundle {
	return []Bundle{
		{
			Name: "debian", Version: 1, About: "Debian's archive and its security updates, by their content network.",
			Hosts: []string{"deb.debian.org", "security.debian.org"},
		},
		{
			Name: "github-read", Version: 1,
			About: "What cloning, downloading and reading from GitHub needs. By name alone reading and writing cannot be told apart: who holds a credential can push.",
			Hosts: []string{
				"api.github.com", "codeload.github.com", "github.com", "media.githubusercontent.com", "objects.githubusercontent.com",
				"raw.githubusercontent.com", "release-assets.githubusercontent.com",
			},
		},
		{
			Name: "npm", Version: 1, About: "The npm registry, for installing. By name alone publishing cannot be told apart: who holds a token can publish.",
			Hosts: []string{"registry.npmjs.org"},
		},
		{
			Name: "pypi", Version: 1, About: "The Python package index and its files, for installing. Uploads go to another host, which is not in it.",
			Hosts: []string{"files.pythonhosted.org", "pypi.org"},
		},
	}
}

// FindBundle is the bundle of that name.
func FindBundle(name string) (Bundle, bool) {
	for _, b := range Bundles() {
		if b.Name == name {
			return b, true
		}
	}
	return Bundle{}, false
}
