package image

import (
	"fmt"
	"io"
	"strings"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/cli/command"
	"github.com/cloche-dev/cloche/internal/terminal"
)

// pullView tells of a pull: at a terminal with a line for each layer that is
// drawn again as it goes on, elsewhere with a line for each thing that is done.
// It is for one goroutine.
type pullView struct {
	w      io.Writer
	redraw bool
	image  string
	state  string
	layers map[string]*layerView
	order  []string
	drawn  int // lines on the terminal
}

// layerView is how far one layer is.
type layerView struct {
	total, fetched, unpacked int64
}

// maxLayerLines are drawn; a screen holds no more.
const maxLayerLines = 16

func newPullView(w io.Writer, redraw bool) *pullView {
	return &pullView{w: w, redraw: redraw, layers: map[string]*layerView{}}
}

// Tell takes what the daemon said.
func (v *pullView) Tell(p api.PullProgress) {
	v.image = p.Image
	if p.Layer == "" {
		if s := phaseText(p.Phase); s != v.state {
			v.state = s
			v.plain("%s: %s", p.Image, s)
		}
		v.draw()
		return
	}
	l := v.layers[p.Layer]
	if l == nil {
		if len(v.layers) >= 1024 {
			return
		}
		l = &layerView{}
		v.layers[p.Layer] = l
		v.order = append(v.order, p.Layer)
	}
	l.total = max(l.total, p.TotalBytes)
	done := p.TotalBytes > 0 && p.Bytes >= p.TotalBytes
	switch p.Phase {
	case api.PullDownload:
		if done && l.fetched < p.TotalBytes {
			v.plain("%s: layer %s fetched, %s", p.Image, shortDigest(p.Layer), command.FormatSize(p.TotalBytes))
		}
		l.fetched = max(l.fetched, p.Bytes)
	case api.PullUnpack:
		if done && l.unpacked < p.TotalBytes {
			v.plain("%s: layer %s unpacked", p.Image, shortDigest(p.Layer))
		}
		l.unpacked = max(l.unpacked, p.Bytes)
	}
	v.draw()
}

func phaseText(p api.PullPhase) string {
	switch p {
	case api.PullResolve:
		return "asking the registry"
	case api.PullWait:
		return "waiting for another pull of it"
	case api.PullWrite:
		return "writing the root filesystem"
	case api.PullDone:
		return "done"
	}
	return string(p)
}

// plain writes a line where nothing is drawn again.
func (v *pullView) plain(format string, args ...any) {
	if !v.redraw {
		fmt.Fprintf(v.w, "%s\n", terminal.Printable(fmt.Sprintf(format, args...)))
	}
}

// draw writes the lines anew over the old ones.
func (v *pullView) draw() {
	if !v.redraw {
		return
	}
	var b strings.Builder
	v.rewind(&b)
	fmt.Fprintf(&b, "%s: %s\r\n", terminal.Printable(v.image), v.state)
	v.drawn = 1
	for i, digest := range v.order {
		if i == maxLayerLines {
			fmt.Fprintf(&b, "  and %d more layers\r\n", len(v.order)-i)
			v.drawn++
			break
		}
		fmt.Fprintf(&b, "  %s  %s\r\n", shortDigest(digest), v.layers[digest].text())
		v.drawn++
	}
	_, _ = io.WriteString(v.w, b.String())
}

// rewind goes back to the first line and clears from there.
func (v *pullView) rewind(b *strings.Builder) {
	if v.drawn > 0 {
		fmt.Fprintf(b, "\x1b[%dA\r\x1b[J", v.drawn)
	}
	v.drawn = 0
}

// Stop takes the drawing away.
func (v *pullView) Stop() {
	var b strings.Builder
	v.rewind(&b)
	_, _ = io.WriteString(v.w, b.String())
}

func (l *layerView) text() string {
	switch {
	case l.total > 0 && l.unpacked >= l.total:
		return "unpacked, " + command.FormatSize(l.total)
	case l.unpacked > 0:
		return fmt.Sprintf("unpacking %s of %s", command.FormatSize(l.unpacked), command.FormatSize(l.total))
	case l.total > 0 && l.fetched >= l.total:
		return "fetched, " + command.FormatSize(l.total)
	}
	return fmt.Sprintf("fetching %s of %s", command.FormatSize(l.fetched), command.FormatSize(l.total))
}

// shortDigest is enough of a digest for people.
func shortDigest(digest string) string {
	const shown = 12
	_, hex, ok := strings.Cut(digest, ":")
	if !ok || len(hex) < shown {
		return terminal.Printable(terminal.Clip(digest))
	}
	return terminal.Printable(hex[:shown])
}

// createView tells a person what a create is doing. It is for one goroutine.
type createView struct {
	app   *command.CLI
	what  string
	quiet bool
	p     *command.Progress
	pull  *pullView
}

// WatchCreate begins; quiet tells nothing.
func WatchCreate(a *command.CLI, what string, quiet bool) *createView {
	v := &createView{app: a, what: what, quiet: quiet}
	v.wait()
	return v
}

// wait goes back to the one line of a create.
func (v *createView) wait() {
	v.p = command.StartProgress(v.app.Stdio.Err, v.app.ShowProgress() && !v.quiet, v.what)
}

// Step takes the name of a step.
func (v *createView) Step(step string) {
	if v.pull != nil {
		v.pull.Stop()
		v.pull = nil
		v.wait()
	}
	v.p.SetStep(step)
}

// Pulling takes how far the image is.
func (v *createView) Pulling(p api.PullProgress) {
	if v.quiet || v.app.JSON {
		return
	}
	if v.pull == nil {
		v.p.Stop()
		v.pull = newPullView(v.app.Stdio.Err, v.app.ShowProgress())
	}
	v.pull.Tell(p)
}

// Stop takes what is drawn away. It may be called more than once.
func (v *createView) Stop() {
	if v.pull != nil {
		v.pull.Stop()
		v.pull = nil
	}
	v.p.Stop()
}
