package main

import (
	"errors"
	"fmt"
	"math"
	"strings"
	"unicode/utf8"
)

// Sizes of text. The widths are estimates for a font of 12 pixels. They are higher than in most
// fonts, because the reader's font isn't known.
const (
	charWidth  = 7.2
	boldWidth  = 7.8
	lineHeight = 16
	padding    = 5
	// titleHeight is the space at the top for the title.
	titleHeight = 40
)

type point struct{ x, y float64 }

type rect struct{ x0, y0, x1, y1 float64 }

func (r rect) width() float64  { return r.x1 - r.x0 }
func (r rect) height() float64 { return r.y1 - r.y0 }

// overlaps reports whether two rectangles share an area.
func (r rect) overlaps(o rect) bool {
	return r.x0 < o.x1 && o.x0 < r.x1 && r.y0 < o.y1 && o.y0 < r.y1
}

// contains reports whether o is completely inside r.
func (r rect) contains(o rect) bool {
	return r.x0 <= o.x0 && o.x1 <= r.x1 && r.y0 <= o.y0 && o.y1 <= r.y1
}

// grow returns a rectangle that is larger on each side.
func (r rect) grow(n float64) rect { return rect{r.x0 - n, r.y0 - n, r.x1 + n, r.y1 + n} }

// partRect returns the rectangle of one part of an arrow. It has an area, so that it can overlap.
func (a *arrow) partRect(i int) rect {
	p, q := a.points[i], a.points[i+1]
	return rect{math.Min(p.x, q.x), math.Min(p.y, q.y), math.Max(p.x, q.x), math.Max(p.y, q.y)}.grow(0.5)
}

// textWidth estimates the width of a line, and returns the line without its mark for bold.
func textWidth(line string) (width float64, text string, bold bool) {
	text, bold = strings.CutPrefix(line, "* ")
	each := charWidth
	if bold {
		each = boldWidth
	}
	return each * float64(utf8.RuneCountInString(text)), text, bold
}

// textSize estimates the size of several lines.
func textSize(lines []string) (width, height float64) {
	for _, line := range lines {
		w, _, _ := textWidth(line)
		width = math.Max(width, w)
	}
	return width, lineHeight * float64(len(lines))
}

// labelRect returns the area of a frame's label, at the frame's top left.
func (it *item) labelRect() rect {
	w, h := textSize(it.text)
	x, y := it.rectangle.x0+padding+3, it.rectangle.y0+padding
	return rect{x, y, x + w, y + h}
}

// labelPart returns the part of an arrow that has the label: the longest if none was given.
func (a *arrow) labelPart() int {
	if a.part >= 0 {
		return a.part
	}
	best := 0
	for i := range len(a.points) - 1 {
		if r, b := a.partRect(i), a.partRect(best); r.width()+r.height() > b.width()+b.height() {
			best = i
		}
	}
	return best
}

// labelRect returns the area of an arrow's label: above a horizontal part, and on the right of a
// vertical one.
func (a *arrow) labelRect() rect {
	w, h := textSize(a.text)
	r := a.partRect(a.labelPart())
	x, y := (r.x0+r.x1)/2, (r.y0+r.y1)/2
	if horizontal := r.width() > r.height(); a.at != 0 && horizontal {
		x = a.at
	} else if a.at != 0 {
		y = a.at
	}
	if r.width() > r.height() {
		if a.side == "below" {
			return rect{x - w/2, y + 4, x + w/2, y + 4 + h}
		}
		return rect{x - w/2, y - 4 - h, x + w/2, y - 4}
	}
	if a.side == "left" {
		return rect{x - 7 - w, y - h/2, x - 7, y + h/2}
	}
	return rect{x + 7, y - h/2, x + 7 + w, y + h/2}
}

// check returns what is wrong with the layout of a picture.
func (p *picture) check() error {
	var errs []error
	fail := func(line int, format string, args ...any) {
		errs = append(errs, fmt.Errorf("line %d: %s", line, fmt.Sprintf(format, args...)))
	}
	space := rect{padding, titleHeight, p.width - padding, p.height - padding}
	if float64(utf8.RuneCountInString(p.title))*boldWidth*titleSize/12 > p.width-4*padding {
		fail(1, "the title is too long")
	}
	p.checkItems(space, fail)
	p.checkArrows(space, fail)
	return errors.Join(errs...)
}

// checkItems checks boxes and frames, and their text.
func (p *picture) checkItems(space rect, fail func(int, string, ...any)) {
	for i, b := range p.boxes {
		if !space.contains(b.rectangle) {
			fail(b.line, "%s is outside the picture", b.id)
		}
		w, h := textSize(b.text)
		if w+2*padding > b.rectangle.width() {
			fail(b.line, "the text of %s needs a width of %.1f, and has %.1f", b.id, (w+2*padding)/unit, b.rectangle.width()/unit)
		}
		if h+2*padding > b.rectangle.height() {
			fail(b.line, "the text of %s needs a height of %.1f, and has %.1f", b.id, (h+2*padding)/unit, b.rectangle.height()/unit)
		}
		for _, o := range p.boxes[:i] {
			if b.rectangle.overlaps(o.rectangle) {
				fail(b.line, "%s overlaps %s", b.id, o.id)
			}
		}
		for _, f := range p.frames {
			switch {
			case !b.rectangle.overlaps(f.rectangle):
			case !f.rectangle.contains(b.rectangle):
				fail(b.line, "%s crosses the border of the frame %s", b.id, f.id)
			case b.rectangle.overlaps(f.labelRect()):
				fail(b.line, "%s covers the label of the frame %s", b.id, f.id)
			}
		}
	}
	for i, f := range p.frames {
		if !space.contains(f.rectangle) {
			fail(f.line, "%s is outside the picture", f.id)
		}
		if !f.rectangle.contains(f.labelRect()) {
			fail(f.line, "the label of %s is larger than the frame", f.id)
		}
		for _, o := range p.frames[:i] {
			switch {
			case !f.rectangle.overlaps(o.rectangle):
			case !o.rectangle.contains(f.rectangle):
				fail(f.line, "%s crosses the border of the frame %s; an outer frame comes first", f.id, o.id)
			case f.rectangle.overlaps(o.labelRect()):
				fail(f.line, "%s covers the label of the frame %s", f.id, o.id)
			}
		}
	}
}

// checkArrows checks arrows and their labels.
func (p *picture) checkArrows(space rect, fail func(int, string, ...any)) {
	for i, a := range p.arrows {
		name := a.from + " to " + a.to
		for n := range len(a.points) - 1 {
			part := a.partRect(n)
			if !space.contains(part) {
				fail(a.line, "the arrow %s leaves the picture", name)
			}
			for _, b := range p.boxes {
				if part.overlaps(b.rectangle.grow(-1)) {
					fail(a.line, "the arrow %s crosses %s", name, b.id)
				}
			}
			for _, f := range p.frames {
				if len(f.text) > 0 && part.overlaps(f.labelRect()) {
					fail(a.line, "the arrow %s crosses the label of the frame %s", name, f.id)
				}
			}
		}
		if len(a.text) == 0 {
			continue
		}
		label := a.labelRect()
		if !space.contains(label) {
			fail(a.line, "the label of the arrow %s is outside the picture", name)
		}
		for _, b := range p.boxes {
			if label.overlaps(b.rectangle) {
				fail(a.line, "the label of the arrow %s overlaps %s", name, b.id)
			}
		}
		for _, f := range p.frames {
			if label.overlaps(f.rectangle) && !f.rectangle.contains(label) {
				fail(a.line, "the label of the arrow %s crosses the border of the frame %s", name, f.id)
			}
			if len(f.text) > 0 && label.overlaps(f.labelRect()) {
				fail(a.line, "the label of the arrow %s covers the label of the frame %s", name, f.id)
			}
		}
		for j, o := range p.arrows {
			if j < i && len(o.text) > 0 && label.overlaps(o.labelRect()) {
				fail(a.line, "the label of the arrow %s overlaps the label of %s to %s", name, o.from, o.to)
			}
			for n := range len(o.points) - 1 {
				if label.overlaps(o.partRect(n)) {
					fail(a.line, "the arrow %s to %s crosses the label of %s", o.from, o.to, name)
				}
			}
		}
	}
}
