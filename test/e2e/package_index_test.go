//go:build linux

package e2e_test

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"crypto/sha512"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"html"
	"io/fs"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/cloche-dev/cloche/api"
)

// packageIndex serves wheels as an index of Python's does, below /simple/, and
// the packages of an npm tree as a registry does, below /npm/.
type packageIndex struct {
	wheels string
	// projects are the file names of each project of Python's.
	projects map[string][]string
	// versions are the package.json files of each package of npm's, by version.
	versions map[string]map[string]map[string]any
	tarballs map[string][]byte
}

// newPackageIndex reads the wheels of one directory and the packages below another.
func newPackageIndex(wheels, modules string) (*packageIndex, error) {
	x := &packageIndex{wheels: wheels, projects: map[string][]string{}, versions: map[string]map[string]map[string]any{}, tarballs: map[string][]byte{}}
	files, err := os.ReadDir(wheels)
	if err != nil {
		return nil, err
	}
	for _, f := range files {
		name, _, _ := strings.Cut(f.Name(), "-")
		name = normalProject(name)
		x.projects[name] = append(x.projects[name], f.Name())
	}
	return x, filepath.WalkDir(modules, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.Name() != "package.json" || !packageDir.MatchString(filepath.Dir(path)) {
			return err
		}
		return x.addModule(filepath.Dir(path))
	})
}

// packageDir is a directory of a package of npm's, not one inside of it.
var packageDir = regexp.MustCompile(`/node_modules/(@[^/]+/)?[^/@.][^/]*$`)

var projectDashes = regexp.MustCompile(`[-_.]+`)

// normalProject is a project's name as Python's indexes have it (PEP 503).
func normalProject(name string) string {
	return strings.ToLower(projectDashes.ReplaceAllString(name, "-"))
}

// addModule adds the package that was installed in a directory.
func (x *packageIndex) addModule(dir string) error {
	b, err := os.ReadFile(filepath.Join(dir, "package.json"))
	if err != nil {
		return err
	}
	var pkg map[string]any
	if err := json.Unmarshal(b, &pkg); err != nil {
		return fmt.Errorf("%s: %w", dir, err)
	}
	name, _ := pkg["name"].(string)
	version, _ := pkg["version"].(string)
	tarball, err := packModule(dir)
	if err != nil {
		return err
	}
	sum := sha512.Sum512(tarball)
	file := strings.ReplaceAll(name, "/", "-") + "-" + version + ".tgz"
	x.tarballs[file] = tarball
	pkg["dist"] = map[string]any{"tarball": file, "integrity": "sha512-" + base64.StdEncoding.EncodeToString(sum[:])}
	if x.versions[name] == nil {
		x.versions[name] = map[string]map[string]any{}
	}
	x.versions[name][version] = pkg
	return nil
}

// packModule is the archive of a package, without those that were installed inside of it.
func packModule(dir string) ([]byte, error) {
	var buf bytes.Buffer
	z := gzip.NewWriter(&buf)
	t := tar.NewWriter(z)
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			if err == nil && d.Name() == "node_modules" {
				return fs.SkipDir
			}
			return err
		}
		if !d.Type().IsRegular() {
			return nil
		}
		fi, err := d.Info()
		if err != nil {
			return err
		}
		b, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(dir, path)
		if err != nil {
			return err
		}
		if err := t.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: "package/" + rel, Mode: int64(fi.Mode().Perm()), Size: int64(len(b))}); err != nil {
			return err
		}
		_, err = t.Write(b)
		return err
	})
	if err != nil {
		return nil, err
	}
	if err := t.Close(); err != nil {
		return nil, err
	}
	err = z.Close()
	return buf.Bytes(), err
}

func (x *packageIndex) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	switch path := r.URL.Path; {
	case strings.HasPrefix(path, "/simple/"):
		files, ok := x.projects[strings.Trim(strings.TrimPrefix(path, "/simple/"), "/")]
		if !ok {
			http.NotFound(w, r)
			return
		}
		w.Header().Set("Content-Type", "text/html")
		for _, f := range files {
			fmt.Fprintf(w, "<a href=\"../../wheels/%s\">%s</a>\n", html.EscapeString(f), html.EscapeString(f))
		}
	case strings.HasPrefix(path, "/wheels/"):
		http.ServeFileFS(w, r, os.DirFS(x.wheels), strings.TrimPrefix(path, "/wheels/"))
	case strings.HasPrefix(path, "/npm/-/"):
		b, ok := x.tarballs[strings.TrimPrefix(path, "/npm/-/")]
		if !ok {
			http.NotFound(w, r)
			return
		}
		_, _ = w.Write(b)
	case strings.HasPrefix(path, "/npm/"):
		x.packument(w, r, strings.TrimPrefix(path, "/npm/"))
	default:
		http.NotFound(w, r)
	}
}

// packument is what a registry of npm's says of a package: it names archives by their
// whole address, which is the address of the endpoint inside.
func (x *packageIndex) packument(w http.ResponseWriter, r *http.Request, name string) {
	versions, ok := x.versions[name]
	if !ok {
		http.NotFound(w, r)
		return
	}
	said := map[string]any{}
	for version, pkg := range versions {
		pkg = maps.Clone(pkg)
		dist := maps.Clone(pkg["dist"].(map[string]any))
		dist["tarball"] = "http://" + api.DefaultEndpointListen + "/npm/-/" + dist["tarball"].(string)
		pkg["dist"] = dist
		said[version] = pkg
	}
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(map[string]any{
		"name": name, "versions": said, "dist-tags": map[string]string{"latest": slices.Max(slices.Collect(maps.Keys(versions)))},
	})
}
