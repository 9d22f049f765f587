package main

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// unit is the number of pixels in a unit of a description.
const unit = 10

// picture is a description, with lengths in pixels.
type picture struct {
	title, desc   string
	width, height float64
	frames        []*item
	boxes         []*item // with the notes
	arrows        []*arrow
}

// item is a frame, a box or a note.
type item struct {
	line      int
	kind, id  string
	style     string
	text      []string
	rectangle rect
}

// arrow connects two items.
type arrow struct {
	line         int
	from, to     string // the names of the ports
	text         []string
	dashed, both bool
	bend         float64 // 0 is the middle
	part         int     // -1 is the longest part
	side         string
	at           float64 // 0 is the middle
	points       []point
}

// styles are the styles of frames and boxes.
var styles = []string{"plain", "head", "hostile", "cloche", "host", "outside", "good", "bad", "part"}

// parse reads a description.
func parse(source string) (*picture, error) {
	p := &picture{}
	var text *[]string // of the last statement
	for i, line := range strings.Split(source, "\n") {
		content := strings.TrimSpace(line)
		switch {
		case content == "", strings.HasPrefix(content, "#"):
			continue
		case line[0] == ' ':
			if text == nil {
				return nil, fmt.Errorf("line %d: text that belongs to nothing", i+1)
			}
			*text = append(*text, content)
			continue
		}
		var err error
		if text, err = p.statement(i+1, content); err != nil {
			return nil, fmt.Errorf("line %d: %w", i+1, err)
		}
	}
	if p.title == "" || p.desc == "" || p.width == 0 || p.height == 0 {
		return nil, fmt.Errorf("title, desc or size is missing")
	}
	for _, a := range p.arrows {
		if err := p.route(a); err != nil {
			return nil, fmt.Errorf("line %d: %w", a.line, err)
		}
	}
	return p, nil
}

// statement reads one line that isn't text. It returns where the text below the line belongs.
func (p *picture) statement(line int, content string) (*[]string, error) {
	verb, rest, _ := strings.Cut(content, " ")
	words := strings.Fields(rest)
	switch verb {
	case "title":
		p.title = rest
	case "desc":
		p.desc = strings.TrimSpace(p.desc + " " + rest)
	case "size":
		n, err := numbers(words, 2)
		if err != nil {
			return nil, err
		}
		p.width, p.height = n[0], n[1]
	case "frame", "box", "note":
		return p.item(line, verb, words)
	case "arrow":
		return p.arrow(line, words)
	default:
		return nil, fmt.Errorf("%q is no statement", verb)
	}
	return nil, nil
}

// item reads a frame, a box or a note.
func (p *picture) item(line int, kind string, words []string) (*[]string, error) {
	style := "none"
	if kind != "note" {
		if len(words) == 0 || !slices.Contains(styles, words[len(words)-1]) {
			return nil, fmt.Errorf("the style isn't one of %v", styles)
		}
		style, words = words[len(words)-1], words[:len(words)-1]
	}
	if len(words) == 0 {
		return nil, fmt.Errorf("the id is missing")
	}
	n, err := numbers(words[1:], 4)
	if err != nil {
		return nil, err
	}
	if p.find(words[0]) != nil {
		return nil, fmt.Errorf("duplicate id %q", words[0])
	}
	it := &item{line: line, kind: kind, id: words[0], style: style, rectangle: rect{n[0], n[1], n[0] + n[2], n[1] + n[3]}}
	if kind == "frame" {
		p.frames = append(p.frames, it)
	} else {
		p.boxes = append(p.boxes, it)
	}
	return &it.text, nil
}

// arrow reads an arrow.
func (p *picture) arrow(line int, words []string) (*[]string, error) {
	if len(words) < 2 {
		return nil, fmt.Errorf("an arrow needs two ends")
	}
	a := &arrow{line: line, from: words[0], to: words[1], part: -1}
	for _, w := range words[2:] {
		name, value, _ := strings.Cut(w, "=")
		var err error
		switch name {
		case "dashed":
			a.dashed = true
		case "both":
			a.both = true
		case "bend":
			a.bend, err = strconv.ParseFloat(value, 64)
			a.bend *= unit
		case "at":
			a.at, err = strconv.ParseFloat(value, 64)
			a.at *= unit
		case "part":
			a.part, err = strconv.Atoi(value)
		case "side":
			a.side = value
			if value != "left" && value != "below" {
				err = fmt.Errorf("side is left or below")
			}
		default:
			err = fmt.Errorf("%q is no option of an arrow", w)
		}
		if err != nil {
			return nil, err
		}
	}
	p.arrows = append(p.arrows, a)
	return &a.text, nil
}

// find returns the frame, box or note with an id, or nil.
func (p *picture) find(id string) *item {
	for _, it := range slices.Concat(p.frames, p.boxes) {
		if it.id == id {
			return it
		}
	}
	return nil
}

// port returns the point that ID.SIDE@OFFSET names, and whether an arrow leaves it
// horizontally.
func (p *picture) port(name string) (at point, horizontal bool, err error) {
	name, offset, _ := strings.Cut(name, "@")
	id, side, _ := strings.Cut(name, ".")
	it := p.find(id)
	if it == nil {
		return point{}, false, fmt.Errorf("no box has the id %q", id)
	}
	r := it.rectangle
	n := -1.0
	if offset != "" {
		if n, err = strconv.ParseFloat(offset, 64); err != nil {
			return point{}, false, err
		}
	}
	along := func(from, to float64) float64 {
		if n < 0 {
			return (from + to) / 2
		}
		return from + n*unit
	}
	switch side {
	case "left":
		at, horizontal = point{r.x0, along(r.y0, r.y1)}, true
	case "right":
		at, horizontal = point{r.x1, along(r.y0, r.y1)}, true
	case "top":
		at = point{along(r.x0, r.x1), r.y0}
	case "bottom":
		at = point{along(r.x0, r.x1), r.y1}
	default:
		return point{}, false, fmt.Errorf("%q is no side", side)
	}
	if at.x < r.x0 || at.x > r.x1 || at.y < r.y0 || at.y > r.y1 {
		return point{}, false, fmt.Errorf("the end %s is outside its box", name)
	}
	return at, horizontal, nil
}

// route computes the corners of an arrow. All its parts are horizontal or vertical.
func (p *picture) route(a *arrow) error {
	from, fromH, err := p.port(a.from)
	if err != nil {
		return err
	}
	to, toH, err := p.port(a.to)
	if err != nil {
		return err
	}
	middle := func(m, n float64) float64 {
		if a.bend != 0 {
			return a.bend
		}
		return (m + n) / 2
	}
	var corners []point
	switch {
	case fromH && toH && (from.y != to.y || a.bend != 0):
		x := middle(from.x, to.x)
		corners = []point{{x, from.y}, {x, to.y}}
	case !fromH && !toH && (from.x != to.x || a.bend != 0):
		y := middle(from.y, to.y)
		corners = []point{{from.x, y}, {to.x, y}}
	case fromH && !toH:
		corners = []point{{to.x, from.y}}
	case !fromH && toH:
		corners = []point{{from.x, to.y}}
	}
	a.points = append(append([]point{from}, corners...), to)
	if a.part >= len(a.points)-1 {
		return fmt.Errorf("the arrow has only %d parts", len(a.points)-1)
	}
	return nil
}

// numbers reads positive lengths, in pixels.
func numbers(words []string, count int) ([]float64, error) {
	if len(words) != count {
		return nil, fmt.Errorf("%d numbers expected, not %q", count, words)
	}
	out := make([]float64, count)
	for i, w := range words {
		n, err := strconv.ParseFloat(w, 64)
		if err != nil || n < 0 {
			return nil, fmt.Errorf("%q is no length", w)
		}
		out[i] = n * unit
	}
	return out, nil
}
