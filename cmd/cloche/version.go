package main

import (
	"cmp"
	"runtime/debug"
)

// release is the version that make sets: -ldflags "-X main.release=…", from git describe
// --tags. It is empty in what go build and go install make.
var release string

// version is what this program, its daemon and the API say.
func version() string {
	info, _ := debug.ReadBuildInfo()
	return versionOf(release, info)
}

// versionOf is the release, or the module's version where Go knows it, or the commit.
func versionOf(release string, info *debug.BuildInfo) string {
	if info == nil {
		return cmp.Or(release, "unknown")
	}
	settings := map[string]string{}
	for _, s := range info.Settings {
		settings[s.Key] = s.Value
	}
	switch module, commit := info.Main.Version, settings["vcs.revision"]; {
	case release != "":
		return release
	case module != "" && module != "(devel)":
		return module
	case len(commit) < 12:
		return "devel"
	case settings["vcs.modified"] == "true":
		return "devel-" + commit[:12] + "+dirty"
	default:
		return "devel-" + commit[:12]
	}
}
