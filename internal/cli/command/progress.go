package command

import (
	"fmt"
	"io"
	"sync"
	"time"

	"github.com/cloche-dev/cloche/internal/terminal"
)

// Progress appears after this long, so that what is quick stays silent.
const progressDelay = time.Second

// Progress tells a person at a terminal what a slow verb is doing. Its line is
// erased when it stops. It owns one goroutine, which stop waits for.
type Progress struct {
	mu   sync.Mutex
	step string // guarded by mu

	stopOnce sync.Once
	quit     chan struct{}
	done     chan struct{}
}

// StartProgress begins; with enabled false nothing is ever written.
func StartProgress(w io.Writer, enabled bool, step string) *Progress {
	p := &Progress{step: step, quit: make(chan struct{}), done: make(chan struct{})}
	if !enabled {
		close(p.done)
		return p
	}
	go p.draw(w)
	return p
}

// SetStep changes what is shown.
func (p *Progress) SetStep(step string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.step = step
}

// Stop erases the line and returns when nothing will be written any more. It
// may be called more than once.
func (p *Progress) Stop() {
	p.stopOnce.Do(func() { close(p.quit) })
	<-p.done
}

func (p *Progress) draw(w io.Writer) {
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
		fmt.Fprintf(w, "\r\x1b[K%c %s %s", "|/-\\"[turn%4], terminal.Printable(step), FormatAge(time.Since(began)))
		select {
		case <-p.quit:
			fmt.Fprint(w, "\r\x1b[K")
			return
		case <-tick.C:
		}
	}
}
