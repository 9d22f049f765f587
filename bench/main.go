//go:build linux

// Command bench measures Cloche against stock runsc, Docker and bubblewrap, all
// in one run, and writes the table with its raw samples.
//
//	go run ./bench            # everything; writes bench/RESULTS.md and bench/results/NAME.json
//	go run ./bench -only exec # one group; prints the table and writes nothing
//
// It needs root (Docker does, and so does counting the memory of processes) and
// the Debian packages that -install installs. A peer that is missing is listed
// with the reason; its rows stay empty.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
)

// options are the flags.
type options struct {
	n       int
	idle    int
	many    int
	dense   int
	check   bool
	only    *regexp.Regexp
	name    string
	install bool
	trace   bool
	cold    bool
	against string
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, os.Args[1:])
	stop()
	if err != nil && !errors.Is(err, flag.ErrHelp) {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

func parse(args []string) (options, error) {
	var o options
	var only string
	fs := flag.NewFlagSet("bench", flag.ContinueOnError)
	fs.IntVar(&o.n, "n", 20, "rounds of each comparison; every subject runs once in each")
	fs.IntVar(&o.idle, "idle", 10, "idle sandboxes that memory is averaged over")
	fs.IntVar(&o.dense, "dense", 1000, "idle sandboxes of each engine that the group load makes")
	fs.IntVar(&o.many, "many", 200, "native sandboxes that are made at once, counted and weighed")
	fs.StringVar(&only, "only", "", "run only the groups that match this `regexp` (build, create, pool, field, load, exec, process, image, workspace, tar, snapshot, suspend, sleepers, record, egress, endpoint, native, clients, memory, against) and write no files")
	fs.StringVar(&o.name, "name", "latest", "name of the file of raw samples")
	fs.BoolVar(&o.install, "install", false, "install the peers with apt-get first")
	fs.BoolVar(&o.check, "check", false, "run the short form: measure only what SPEC.md has a band for, and fail if a ratio is outside of it")
	fs.BoolVar(&o.trace, "trace", false, "also print how long each step of a create takes")
	fs.BoolVar(&o.cold, "cold", true, "also time a build with an empty cache (minutes)")
	fs.StringVar(&o.against, "against", "", "also time the daemon of this `executable`, another version of cloche, in turn with this one's")
	if err := fs.Parse(args); err != nil {
		return o, err
	}
	if fs.NArg() > 0 || o.n < 1 || o.idle < 1 || o.many < 1 || o.dense < 1 || o.name != filepath.Base(o.name) {
		return o, fmt.Errorf("arguments %q: want flags only, -n, -idle, -many and -dense at least 1, -name without a slash", args)
	}
	var err error
	if o.check {
		o.only = regexp.MustCompile(checkedGroups)
		if !isSet(fs, "n") {
			o.n = checkedRounds
		}
	}
	if only != "" {
		o.only, err = regexp.Compile(only)
	}
	return o, err
}

func isSet(fs *flag.FlagSet, name string) (set bool) {
	fs.Visit(func(f *flag.Flag) { set = set || f.Name == name })
	return set
}

func run(ctx context.Context, args []string) (err error) {
	o, err := parse(args)
	if err != nil {
		return err
	}
	root, err := moduleRoot(ctx)
	if err != nil {
		return err
	}
	if o.install {
		if err := install(ctx); err != nil {
			return err
		}
	}
	b, err := newBench(ctx, o, root)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, b.close()) }()
	// What fills the disk comes last: its journal is busy for a while afterwards.
	groups := []struct {
		name string
		run  func(context.Context) error
	}{{"build", b.build}, {"create", b.create}, {"pool", b.pool}, {"field", b.field}, {"load", b.load}, {"exec", b.exec}, {"process", b.process}, {"image", b.images}, {"workspace", b.workspace}, {"snapshot", b.snapshots}, {"suspend", b.suspend}, {"sleepers", b.sleepers}, {"record", b.records}, {"egress", b.egress}, {"endpoint", b.endpoints}, {"native", b.native}, {"clients", b.clients}, {"memory", b.memory}, {"tar", b.tar}, {"against", b.versions}}
	for _, g := range groups {
		if o.only != nil && !o.only.MatchString(g.name) {
			continue
		}
		b.log.Info("group", "name", g.name)
		if err := g.run(ctx); err != nil {
			return fmt.Errorf("group %s: %w", g.name, err)
		}
	}
	b.report.Machine.LoadAfter = loadAverage()
	table := b.report.markdown()
	if o.only == nil {
		if err := b.report.save(filepath.Join(root, "bench"), o.name, table); err != nil {
			return err
		}
	}
	if _, err = os.Stdout.WriteString(table); err != nil || !o.check {
		return err
	}
	return b.report.hold(bands())
}

func moduleRoot(ctx context.Context) (string, error) {
	out, err := exec.CommandContext(ctx, "go", "env", "GOMOD").Output()
	if err != nil {
		return "", fmt.Errorf("find module: %w", err)
	}
	mod := strings.TrimSpace(string(out))
	if filepath.Base(mod) != "go.mod" {
		return "", errors.New("find module: run this in the source tree")
	}
	return filepath.Dir(mod), nil
}

// bench is one run: the machine's facts, what was built, and the results.
type bench struct {
	options
	root   string // of the module
	dir    string // temporary; everything but the results is made here
	log    *slog.Logger
	report *report
	bin    string // the cloche binary, a copy that no other build replaces

	started *peers // nil until the first group that needs them
	served  *app   // the daemon among them, which some groups need alone

	undo []func() error
}

func newBench(ctx context.Context, o options, root string) (*bench, error) {
	dir, err := os.MkdirTemp("", "cbench-")
	if err != nil {
		return nil, fmt.Errorf("make temporary directory: %w", err)
	}
	b := &bench{
		options: o, root: root, dir: dir,
		log: slog.New(slog.NewTextHandler(os.Stderr, nil)),
		bin: filepath.Join(dir, "cloche"),
	}
	b.defers(func() error { return os.RemoveAll(dir) })
	b.defers(removeCgroups)
	// Mount points and the like below it are entered by daemons of this run only.
	if err := os.Chmod(dir, 0o755); err != nil {
		return nil, errors.Join(err, b.close())
	}
	b.report = &report{Machine: machineFacts(ctx, root), Rounds: o.n}
	return b, nil
}

// defers adds what is undone at the end, last first.
func (b *bench) defers(f func() error) { b.undo = append(b.undo, f) }

func (b *bench) close() error { return unwind(&b.undo) }

// unwind undoes what was added, last first.
func unwind(undo *[]func() error) error {
	var errs []error
	for list := *undo; len(list) > 0; list = *undo {
		*undo = list[:len(list)-1]
		errs = append(errs, list[len(list)-1]())
	}
	return errors.Join(errs...)
}

// missing notes a peer, or a row of Cloche, that could not be measured.
func (b *bench) missing(name string, err error) {
	b.log.Warn("not run", "name", name, "error", cut(err.Error()))
	b.report.NotRun = append(b.report.NotRun, notRun{Name: name, Why: cut(b.clean(err.Error()))})
}

// clean takes the names of this machine's directories out of a text that is
// published.
func (b *bench) clean(s string) string {
	home, _ := os.UserHomeDir()
	for dir, name := range map[string]string{b.dir: "$TMP", b.root: "$SRC", home: "$HOME"} {
		if len(dir) > 1 {
			s = strings.ReplaceAll(s, dir, name)
		}
	}
	return strings.Join(strings.Fields(s), " ")
}

// cut keeps the begin of a text that explains something.
func cut(s string) string {
	const most = 400
	if len(s) > most {
		return s[:most] + " …"
	}
	return s
}
