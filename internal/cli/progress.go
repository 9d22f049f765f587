package cli

import (
	"fmt"
	"io"
	"sync"
	"time"

	"github.com/cloche-dev/cloche/internal/terminal"
)

// Progress appears after this long, so that what is quick stays silent.
const progressDelay = time.Second

// progress tells a person at a terminal what a slow verb is doing. Its line is
// erased when it stops. It owns one goroutine, which stop waits for.
type progress struct {
	mu   sync.Mutex
	step string // guarded by mu

	stopOnce sync.Once
	quit     chan struct{}
	done     chan struct{}
}

// startProgress begins; with enabled false nothing is ever written.
func startProgress(w io.Writer, enabled bool, step string) *progress {
	p := &progress{step: step, quit: make(chan struct{}), done: make(chan struct{})}
	if !enabled {
		close(p.done)
		return p
	}
	go p.draw(w)
	return p
}

// setStep changes what is shown.
func (p *progress) setStep(step string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.step = step
}

// stop erases the line and returns when nothing will be written any more. It
// may be called more than once.
func (p *progress) stop() {
	p.stopOnce.Do(func() { close(p.quit) })
	<-p.done
}

func (p *progress) draw(w io.Writer) {
	defer close(p.done)
	began := time.Now()
	delay := time.NewTimer(progressDelay)
	defer delay.Stop()
	select {
	case <-p.quit:
		return
	case <-delay.C:
	}
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for turn := 0; ; turn++ {
		p.mu.Lock()
		step := p.step
		p.mu.Unlock()
		fmt.Fprintf(w, "\r\x1b[K%c %s %s", "|/-\\"[turn%4], terminal.Printable(step), formatAge(time.Since(began)))
		select {
		case <-p.quit:
			fmt.Fprint(w, "\r\x1b[K")
			return
		case <-tick.C:
		}
	}
}
