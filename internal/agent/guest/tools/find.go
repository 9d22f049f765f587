//go:build linux

package tools

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"io"
	"os"
	"path"
	"regexp"
	"slices"
	"strings"
	"unicode/utf8"

	"golang.org/x/sys/unix"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/agent/guest/pathwalk"
	"github.com/cloche-dev/cloche/internal/dirent"
)

const (
	// maxToolDepth bounds open directories, maxToolEntries the names that a search looks
	// at, and maxToolNames those of one directory, which are sorted.
	maxToolDepth   = 64
	maxToolEntries = 200_000
	maxToolNames   = 20_000
	// maxToolKept is how many more files than are wanted are in hand at once.
	maxToolKept = 1000
	// maxToolTold bounds each list of files that were not searched.
	maxToolTold = 100
)

// errEnough ends a search.
var errEnough = errors.New("enough was found")

// search walks a tree and opens nothing through a symlink, so that a change of the tree
// meanwhile cannot lead it elsewhere.
type search struct {
	ctx     context.Context
	skip    []string
	entries int
	buf     []byte
	partial api.ToolPartial
	// enter says whether to go into a directory; file is told of everything else. Both
	// get the descriptor of the directory that it is in, and how deep that is. An
	// errEnough ends the search.
	enter func(at int, name, rel string, depth int) bool
	file  func(at int, e dirent.Entry, rel string, depth int) error
}

func newSearch(ctx context.Context, skip []string) *search {
	if skip == nil {
		skip = api.ToolSkip()
	}
	return &search{ctx: ctx, skip: skip, buf: make([]byte, dirent.Bytes)}
}

// enough ends the search and says why.
func (s *search) enough(why api.ToolPartial) error {
	s.partial = why
	return errEnough
}

// run walks what is in the open directory d, whose path below the root is rel.
func (s *search) run(d int, rel string) error {
	err := s.directory(d, rel, 0)
	if errors.Is(err, errEnough) {
		return nil
	}
	return err
}

func (s *search) directory(d int, rel string, depth int) error {
	names, err := s.names(d)
	if err != nil {
		return err
	}
	for _, e := range names {
		if s.ctx.Err() != nil {
			return s.enough(api.PartialTime)
		}
		if e.Kind == unix.DT_UNKNOWN {
			e.Kind = dirent.KindAt(d, e.Name)
		}
		below := path.Join(rel, e.Name)
		if e.Kind != unix.DT_DIR {
			if err := s.file(d, e, below, depth); err != nil {
				return err
			}
			continue
		}
		if !s.enter(d, e.Name, below, depth) || slices.Contains(s.skip, e.Name) {
			continue
		}
		if depth >= maxToolDepth {
			s.partial = api.PartialFiles
			continue
		}
		if err := s.into(d, e.Name, below, depth+1); err != nil {
			return err
		}
	}
	return nil
}

// into goes into a directory. One that cannot be read is left out.
func (s *search) into(at int, name, rel string, depth int) error {
	fd, err := unix.Openat(at, name, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil
	}
	defer unix.Close(fd)
	if pathwalk.IsKernelFile(fd) || pathwalk.CheckAllowed(fd) != nil {
		return nil
	}
	return s.directory(fd, rel, depth)
}

// names are those of a directory in their order.
func (s *search) names(d int) ([]dirent.Entry, error) {
	var all []dirent.Entry
	for {
		list, err := dirent.Read(d, s.buf)
		if err != nil || len(list) == 0 {
			slices.SortFunc(all, func(a, b dirent.Entry) int { return cmp.Compare(a.Name, b.Name) })
			return all, nil // of one that cannot be read further, what there was
		}
		if s.entries += len(list); s.entries > maxToolEntries || len(all)+len(list) > maxToolNames {
			return nil, s.enough(api.PartialFiles)
		}
		all = append(all, list...)
	}
}

// top opens the directory that a search begins in.
func (pl *place) top() (*os.File, error) {
	d, err := pl.openAt(pl.rel, unix.O_RDONLY|unix.O_DIRECTORY)
	if err != nil {
		return nil, err
	}
	if pathwalk.IsKernelFile(int(d.Fd())) {
		d.Close()
		return nil, unix.EACCES
	}
	return d, nil
}

func limitOf(asked, most int) (int, error) {
	if asked < 0 || asked > most {
		return 0, api.Invalid("limit", "%d matches were asked for", asked).WithHint("1 to %d, or leave it out", most)
	}
	return cmp.Or(asked, most), nil
}

// toolGlob finds files by name.
func toolGlob(ctx context.Context, pl *place, r *api.ToolGlob) (api.ToolFiles, error) {
	out := api.ToolFiles{Files: []api.ToolFile{}}
	limit, err := limitOf(r.Limit, api.MaxToolGlob)
	if err != nil {
		return out, err
	}
	g, err := parseGlob("pattern", r.Pattern)
	if err != nil {
		return out, err
	}
	d, err := pl.top()
	if err != nil {
		return out, err
	}
	defer d.Close()
	s := newSearch(ctx, r.Skip)
	states := make([]globState, maxToolDepth+2) // of the directories that are open, by their depth
	states[0] = g.start()
	found := func(at int, name, rel string, state globState) {
		var st unix.Stat_t
		if !g.matches(state) || unix.Fstatat(at, name, &st, unix.AT_SYMLINK_NOFOLLOW) != nil {
			return
		}
		info := pathwalk.Describe(name, &st)
		out.Files = append(out.Files, api.ToolFile{Path: pathwalk.Text(pl.in(rel)), Type: info.Type, Size: info.Size, ModTime: info.ModTime})
		if len(out.Files) >= limit+maxToolKept { // it is the newest that are kept
			out.Files, out.Partial = newestFiles(out.Files, limit), api.PartialMatches
		}
	}
	s.enter = func(at int, name, rel string, depth int) bool {
		state := g.step(states[depth], name)
		found(at, name, rel, state)
		states[depth+1] = state
		return g.leads(state)
	}
	s.file = func(at int, e dirent.Entry, rel string, depth int) error {
		found(at, e.Name, rel, g.step(states[depth], e.Name))
		return nil
	}
	if err := s.run(int(d.Fd()), pl.rel); err != nil {
		return out, err
	}
	if len(out.Files) > limit {
		out.Partial = api.PartialMatches
	}
	out.Partial = cmp.Or(s.partial, out.Partial)
	out.Files = newestFiles(out.Files, limit)
	return out, nil
}

// newestFiles sorts files by when they were changed and keeps so many.
func newestFiles(files []api.ToolFile, n int) []api.ToolFile {
	slices.SortFunc(files, func(a, b api.ToolFile) int {
		return cmp.Or(b.ModTime.Compare(a.ModTime), cmp.Compare(a.Path, b.Path))
	})
	return files[:min(len(files), n)]
}

// grep is one search for lines.
type grep struct {
	*search
	pl      *place
	re      *regexp.Regexp
	include globPattern
	named   bool // include is for names
	all     bool // there is no include
	limit   int
	seen    int
	content bytes.Buffer
	out     api.ToolLines
}

// toolGrep finds lines in text files.
func toolGrep(ctx context.Context, pl *place, r *api.ToolGrep) (api.ToolLines, error) {
	g := &grep{search: newSearch(ctx, r.Skip), pl: pl, all: r.Include == "", named: !strings.Contains(r.Include, "/")}
	g.out.Matches = []api.ToolMatch{}
	var err error
	if g.limit, err = limitOf(r.Limit, api.MaxToolGrep); err != nil {
		return g.out, err
	}
	if g.re, err = compile(r); err != nil {
		return g.out, err
	}
	if !g.all {
		if g.include, err = parseGlob("include", r.Include); err != nil {
			return g.out, err
		}
	}
	s, err := pl.find(pl.rel, true)
	if err != nil {
		return g.out, err
	}
	dir := s.IsDir()
	s.Close()
	if !dir {
		return g.out, g.one()
	}
	d, err := pl.top()
	if err != nil {
		return g.out, err
	}
	defer d.Close()
	g.enter = func(int, string, string, int) bool { return true }
	g.file = g.look
	err = g.run(int(d.Fd()), pl.rel)
	g.out.Partial = g.partial
	return g.out, err
}

// compile makes the expression of a request. It is RE2's, so its time is linear.
func compile(r *api.ToolGrep) (*regexp.Regexp, error) {
	text := r.Pattern
	if text == "" || len(text) > api.MaxToolPattern {
		return nil, api.Invalid("pattern", "the pattern has %d bytes", len(text)).WithHint("1 to %d", api.MaxToolPattern)
	}
	if r.Fixed {
		text = regexp.QuoteMeta(text)
	}
	if r.IgnoreCase {
		text = "(?i:" + text + ")"
	}
	re, err := regexp.Compile(text)
	if err != nil {
		return nil, api.Invalid("pattern", "the pattern is no regular expression: %w", err).
			WithHint("the syntax is RE2's, without look-around and back-references; fixed takes it as plain text")
	}
	return re, nil
}

// one searches the one file that the path names, which a symlink may lead to.
func (g *grep) one() error {
	f, _, err := g.pl.open(g.pl.rel)
	if err != nil {
		return err
	}
	defer f.Close()
	if err := g.lines(f, pathwalk.Text(g.pl.abs())); err != nil && !errors.Is(err, errEnough) {
		return err
	}
	g.out.Partial = g.partial
	return nil
}

// look searches one file of a directory.
func (g *grep) look(at int, e dirent.Entry, rel string, _ int) error {
	if e.Kind != unix.DT_REG || !g.wanted(rel, e.Name) {
		return nil
	}
	if g.seen++; g.seen > api.MaxToolFiles {
		return g.enough(api.PartialFiles)
	}
	name := pathwalk.Text(g.pl.in(rel))
	fd, err := unix.Openat(at, e.Name, unix.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK|unix.O_NOCTTY|unix.O_CLOEXEC, 0)
	if err != nil {
		g.tell(&g.out.Unread, name)
		return nil
	}
	f := os.NewFile(uintptr(fd), e.Name)
	defer f.Close()
	if st, err := f.Stat(); err != nil || !st.Mode().IsRegular() || pathwalk.CheckAllowed(fd) != nil {
		g.tell(&g.out.Unread, name)
		return nil
	}
	return g.lines(f, name)
}

func (g *grep) wanted(rel, name string) bool {
	if g.all {
		return true
	}
	state := g.include.start()
	if g.named {
		return g.include.matches(g.include.step(state, name))
	}
	below := rel
	if g.pl.rel != "." {
		below = strings.TrimPrefix(rel, g.pl.rel+"/")
	}
	for part := range strings.SplitSeq(below, "/") {
		state = g.include.step(state, part)
	}
	return g.include.matches(state)
}

func (g *grep) tell(list *[]string, name string) {
	if len(*list) < maxToolTold {
		*list = append(*list, name)
	}
}

// lines searches an open file.
func (g *grep) lines(f io.Reader, name string) error {
	g.content.Reset()
	_, err := g.content.ReadFrom(io.LimitReader(f, api.MaxToolFile+1))
	content := g.content.Bytes()
	switch {
	case err != nil, len(content) > api.MaxToolFile:
		g.tell(&g.out.Unread, name)
		return nil
	case bytes.IndexByte(content[:min(len(content), sniffed)], 0) >= 0:
		g.tell(&g.out.Binary, name)
		return nil
	}
	g.out.Searched++
	number := 0
	for line := range bytes.Lines(content) {
		number++
		if number%128 == 0 && g.ctx.Err() != nil {
			return g.enough(api.PartialTime)
		}
		line = bytes.TrimSuffix(bytes.TrimSuffix(line, []byte("\n")), []byte("\r"))
		if !g.re.Match(line[:min(len(line), api.MaxToolLine)]) {
			continue
		}
		if len(g.out.Matches) == g.limit {
			return g.enough(api.PartialMatches)
		}
		text, cut := firstChars(line, api.MaxToolShown)
		g.out.Matches = append(g.out.Matches, api.ToolMatch{Path: name, Line: number, Text: text, Cut: cut})
	}
	return nil
}

// firstChars are the first characters of a line as text.
func firstChars(line []byte, n int) (text string, cut bool) {
	cut = len(line) > n*utf8.UTFMax
	s := strings.ToValidUTF8(string(line[:min(len(line), n*utf8.UTFMax)]), "\uFFFD")
	for i := range s {
		if n == 0 {
			return s[:i], true
		}
		n--
	}
	return s, cut
}
