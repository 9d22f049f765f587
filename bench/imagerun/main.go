//go:build linux

// Command imagerun runs programs from an EROFS image without host directories,
// on the gVisor engine, or the native one, and the agent, with nothing of the app
// around them.
//
// With -once it runs one program as a whole process. Otherwise it is a daemon
// on its standard input: each line is a JSON request, answered by JSON lines.
// It ends, with its sandboxes, at end of file.
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"path/filepath"
	"sync"
	"syscall"
	"time"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/agent"
	"github.com/cloche-dev/cloche/internal/agent/embed"
	"github.com/cloche-dev/cloche/internal/engine"
	"github.com/cloche-dev/cloche/internal/engine/gvisor"
	"github.com/cloche-dev/cloche/internal/engine/native"
	"github.com/cloche-dev/cloche/internal/image"
)

// target is where the agent's image is seen inside.
const target = "/.cloche"

// request is one line of standard input.
type request struct {
	// Op is "run" (a sandbox of its own), "hold" (make N and keep them, or one), "exec"
	// (in the one that was made last), "ready" (until as many agents wait as were asked
	// for) or "drop" (end all that are held).
	Op   string   `json:"op"`
	Argv []string `json:"argv,omitempty"`
	// N is how many, and AtOnce how many of them at the same time.
	N      int `json:"n,omitempty"`
	AtOnce int `json:"at_once,omitempty"`
}

// answer is one line of standard output. A run has two: its output, then, when
// the sandbox is gone, one with Closed.
type answer struct {
	Output string             `json:"output,omitempty"`
	Steps  map[string]float64 `json:"steps,omitempty"` // in ms
	Closed bool               `json:"closed,omitempty"`
	Error  string             `json:"error,omitempty"`
}

// settings are the flags.
type settings struct {
	dir, root                    string
	memory, pids, tmp, shm, disk int64
	cpus                         float64
	once, trace, warm            bool
	engine                       string
	waiting                      int
}

func main() {
	var s settings
	flag.StringVar(&s.dir, "dir", "", "a directory for state and images")
	flag.StringVar(&s.root, "root", "", "the EROFS image")
	flag.Int64Var(&s.memory, "memory", 0, "memory limit in bytes")
	flag.Float64Var(&s.cpus, "cpus", 0, "processor limit in cores")
	flag.Int64Var(&s.pids, "pids", 0, "process limit")
	flag.Int64Var(&s.disk, "disk", 0, "limit of the writable layer in bytes")
	flag.Int64Var(&s.tmp, "tmp", 64<<20, "size of /tmp in bytes")
	flag.Int64Var(&s.shm, "shm", 64<<20, "size of /dev/shm in bytes")
	flag.BoolVar(&s.once, "once", false, "run the arguments, once")
	flag.BoolVar(&s.warm, "spare", false, "have a sentry started and parked for the next sandbox, as the daemon does")
	flag.StringVar(&s.engine, "engine", gvisor.Name, "the engine: gvisor or native")
	flag.IntVar(&s.waiting, "waiting", 0, "how many sandboxes are kept ready for the next requests; the engine native keeps agents that wait")
	flag.BoolVar(&s.trace, "trace", false, "write the engine's debug log to standard error, as JSON")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := serve(ctx, s, flag.Args())
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "imagerun:", err)
		os.Exit(1)
	}
}

func serve(ctx context.Context, s settings, argv []string) (err error) {
	r, err := newRunner(ctx, s)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, r.close(context.WithoutCancel(ctx))) }()
	if s.once {
		a := r.answerRun(ctx, argv, func(a answer) { _, _ = os.Stdout.WriteString(a.Output) })
		if a.Error != "" {
			return errors.New(a.Error)
		}
		return nil
	}
	out := json.NewEncoder(os.Stdout)
	say := func(a answer) { err = errors.Join(err, out.Encode(a)) }
	for lines := bufio.NewScanner(os.Stdin); lines.Scan(); {
		var q request
		if err := json.Unmarshal(lines.Bytes(), &q); err != nil {
			return fmt.Errorf("read request: %w", err)
		}
		if qerr := r.carryOut(ctx, q, say); err != nil || qerr != nil {
			return errors.Join(qerr, err)
		}
	}
	return nil
}

// requestLimit bounds a request, so that the caller learns what hangs.
const (
	requestLimit = 25 * time.Second
	// requestEach is how much longer it may take for each sandbox that it is about.
	requestEach = 2 * time.Second
)

func (r *runner) carryOut(ctx context.Context, q request, say func(answer)) error {
	ctx, cancel := context.WithTimeout(ctx, requestLimit+time.Duration(q.N)*requestEach)
	defer cancel()
	switch q.Op {
	case "ready":
		say(answer{Error: text(r.ready(ctx))})
	case "run":
		say(r.answerRun(ctx, q.Argv, say))
	case "hold":
		say(r.answerHold(ctx, max(q.N, 1), max(q.AtOnce, 1)))
	case "exec":
		say(r.answerExec(ctx, q.Argv))
	case "drop":
		say(answer{Closed: true, Error: text(r.drop(ctx))})
	default:
		return fmt.Errorf("request %q is not known", q.Op)
	}
	return nil
}

// runner makes sandboxes from one image.
type runner struct {
	settings
	owner  string
	engine engine.Engine
	end    func() error
	agent  string // path of the agent's image
	held   []*sandbox
}

func newRunner(ctx context.Context, s settings) (*runner, error) {
	log := slog.New(slog.DiscardHandler)
	if s.trace {
		log = slog.New(slog.NewJSONHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelDebug}))
	}
	images, err := image.Open(filepath.Join(s.dir, "images"))
	if err != nil {
		return nil, err
	}
	program, ok := embed.Binary()
	if !ok {
		return nil, errors.New("the agent is not embedded: build it first")
	}
	r := &runner{settings: s, owner: api.NewID("bench-")}
	if r.agent, err = images.AgentImage(ctx, program); err != nil {
		return nil, err
	}
	return r, r.open(log)
}

// open makes the engine.
func (r *runner) open(log *slog.Logger) error {
	switch r.settings.engine {
	case gvisor.Name:
		e, err := gvisor.New(gvisor.Options{StateDir: r.stateDir(), KeepDir: filepath.Join(r.dir, "bin"), Warm: r.warm, Logger: log})
		if err != nil {
			return err
		}
		if r.warm || r.once {
			e.Prepare(r.owner, r.cpus, true)
		}
		r.engine, r.end = e, e.Close
	case native.Name:
		e, err := native.New(native.Options{StateDir: r.stateDir(), RootsDir: filepath.Join(r.dir, "roots"), PoolBytes: poolBytes, Logger: log})
		if err != nil {
			return err
		}
		r.engine, r.end = e, e.Close
	default:
		return fmt.Errorf("no engine %q", r.settings.engine)
	}
	return nil
}

func (r *runner) stateDir() string { return filepath.Join(r.dir, "engine") }

func (r *runner) close(ctx context.Context) error {
	return errors.Join(r.drop(ctx), r.end())
}

// poolBytes is more than what the agents have that wait.
const poolBytes = 4 << 30

// ready waits until as many sandboxes, or agents of them, are ready as are kept.
func (r *runner) ready(ctx context.Context) error {
	keeper, ok := r.engine.(engine.Pooler)
	if !ok {
		return errors.New("the engine has no pool")
	}
	for {
		is := keeper.PoolCounts().Ready
		if is >= r.waiting {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%d of %d are ready: %w", is, r.waiting, ctx.Err())
		case <-time.After(10 * time.Millisecond):
		}
	}
}

// dropAtOnce is how many sandboxes are ended at the same time.
const dropAtOnce = 4

func (r *runner) drop(ctx context.Context) error {
	held := r.held
	r.held = nil
	return together(len(held), dropAtOnce, func(i int) error { return held[i].close(ctx) })
}

// together calls do for each of n, with so many calls under way at once.
func together(n, atOnce int, do func(i int) error) error {
	var (
		wg   sync.WaitGroup
		errs = make([]error, n)
		next = make(chan int)
	)
	for range min(n, atOnce) {
		wg.Go(func() {
			for i := range next {
				errs[i] = do(i)
			}
		})
	}
	for i := range n {
		next <- i
	}
	close(next)
	wg.Wait()
	return errors.Join(errs...)
}

// answerRun is a whole life. The output is said as soon as it is there; the
// answer that is returned follows the end of the sandbox.
func (r *runner) answerRun(ctx context.Context, argv []string, say func(answer)) answer {
	sb, err := r.create(ctx)
	if err != nil {
		return answer{Error: err.Error()}
	}
	out, err := sb.exec(ctx, argv, func(first string) { say(answer{Output: first, Steps: sb.steps}) })
	if out == "" && err == nil {
		say(answer{Steps: sb.steps})
	}
	began := time.Now()
	err = errors.Join(err, sb.close(context.WithoutCancel(ctx)))
	return answer{Closed: true, Error: text(err), Steps: map[string]float64{"close": ms(time.Since(began))}}
}

// answerHold makes sandboxes that stay, and says how long that took for all of them.
func (r *runner) answerHold(ctx context.Context, n, atOnce int) answer {
	made := make([]*sandbox, n)
	began := time.Now()
	err := together(n, atOnce, func(i int) (err error) {
		made[i], err = r.create(ctx)
		return err
	})
	took := time.Since(began)
	for _, sb := range made {
		if sb != nil {
			r.held = append(r.held, sb)
		}
	}
	return answer{Error: text(err), Steps: map[string]float64{"hold": ms(took)}}
}

func (r *runner) answerExec(ctx context.Context, argv []string) answer {
	if len(r.held) == 0 {
		return answer{Error: "no sandbox is held"}
	}
	began := time.Now()
	res, err := r.held[len(r.held)-1].client.Exec(ctx, start(argv))
	if err == nil && !res.OK() {
		err = fmt.Errorf("exec %q ended with status %d: %s", argv, res.ExitStatus(), res.Stderr)
	}
	return answer{Output: string(res.Stdout), Error: text(err), Steps: map[string]float64{"exec": ms(time.Since(began))}}
}

// sandbox is a live one.
type sandbox struct {
	inst   engine.Instance
	client *agent.Client
	dir    string
	steps  map[string]float64
}

func (r *runner) create(ctx context.Context) (_ *sandbox, err error) {
	sb := &sandbox{steps: map[string]float64{}}
	began := time.Now()
	if sb.dir, err = os.MkdirTemp(r.dir, "sb-"); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, sb.close(context.WithoutCancel(ctx)))
		}
	}()
	token := agent.NewToken()
	config, uid := r.configuration(token)
	told, err := config.Marshal()
	if err != nil {
		return nil, err
	}
	sb.inst, err = r.engine.Create(ctx, engine.Plan{
		ID: api.NewID("sb-"), Owner: r.owner, Dir: sb.dir, Hostname: "bench",
		Root: engine.Root{Image: r.root},
		Tmpfs: []engine.Tmpfs{
			{Target: "/tmp", SizeBytes: r.tmp, Mode: 0o1777}, {Target: "/dev/shm", SizeBytes: r.shm, Mode: 0o1777},
		},
		Pool:   engine.Pool{User: "bench", Floor: r.waiting, Ceiling: r.waiting},
		Limits: engine.Limits{CPUs: r.cpus, MemoryBytes: r.memory, Pids: r.pids, DiskBytes: r.disk},
		Agent: engine.Agent{
			Image: r.agent, Target: target, Argv: []string{target + image.AgentPath}, UID: uid, Config: told, Port: agent.Port,
		},
		DieWithParent: true,
	})
	if err != nil {
		return nil, err
	}
	sb.steps["engine"] = ms(time.Since(began))
	began = time.Now()
	conn, err := sb.inst.Dial(ctx)
	if err != nil {
		return nil, err
	}
	if sb.client, err = agent.Connect(ctx, conn, token); err != nil {
		return nil, err
	}
	sb.steps["connect"] = ms(time.Since(began))
	return sb, nil
}

// configuration is what the agent is told on this engine, and whose it is.
func (r *runner) configuration(token []byte) (agent.Config, uint32) {
	config := agent.Config{Token: token, PidsMax: r.pids}
	host, ok := r.engine.(engine.Host)
	if !ok {
		return config, agent.UID
	}
	terms := host.Terms()
	config.Port, config.KernelGuardsInit, config.Confine, config.SingleUser, config.NoCgroup = agent.Port, true, true, terms.SingleUser, terms.NoGroups
	if terms.LimitsPids {
		config.PidsMax, config.OwnThreads = 0, terms.CountsAgent
	}
	return config, 0
}

// exec runs a program and hands its first output on at once.
func (s *sandbox) exec(ctx context.Context, argv []string, firstOutput func(string)) (string, error) {
	began := time.Now()
	stream, err := s.client.Stream(ctx, start(argv))
	if err != nil {
		return "", err
	}
	defer stream.Close()
	var out string
	for {
		ev, err := stream.Recv()
		if err != nil {
			return out, err
		}
		if ev.Exit != nil {
			if !ev.Exit.OK() {
				return out, fmt.Errorf("exec %q ended with status %d", argv, ev.Exit.ExitStatus())
			}
			return out, nil
		}
		if out == "" {
			s.steps["exec"] = ms(time.Since(began))
			firstOutput(string(ev.Data))
		}
		out += string(ev.Data)
	}
}

func (s *sandbox) close(ctx context.Context) error {
	var errs []error
	if s.client != nil {
		// The sandbox is killed next: what its end says of that does not matter.
		_ = s.client.Close()
	}
	if s.inst != nil {
		errs = append(errs, s.inst.Close(ctx))
	}
	return errors.Join(append(errs, os.RemoveAll(s.dir))...)
}

func start(argv []string) agent.Start {
	return agent.Start{ExecID: api.NewID("ex-"), Argv: argv, Env: []string{"PATH=/bin"}, Cwd: "/"}
}

func ms(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }

func text(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}
