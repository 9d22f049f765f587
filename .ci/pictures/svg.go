package main

import (
	"bytes"
	"fmt"
	"html"
	"strconv"
)

// titleSize is the font size of the title.
const titleSize = 15

// colors are the colors of one scheme.
type colors struct {
	back, text, faint, line string
	boxes                   map[string][2]string // fill and border
}

var light = colors{
	back: "#ffffff", text: "#1f2328", faint: "#57606a", line: "#57606a",
	boxes: map[string][2]string{
		"plain":   {"#ffffff", "#8c959f"},
		"head":    {"#eaeef2", "#8c959f"},
		"hostile": {"#fff1e5", "#bc4c00"},
		"cloche":  {"#e7f3ff", "#0969da"},
		"host":    {"#f6f8fa", "#6e7781"},
		"outside": {"#fbefff", "#8250df"},
		"good":    {"#e6f6ea", "#1a7f37"},
		"bad":     {"#ffebe9", "#cf222e"},
		"part":    {"#fff8c5", "#9a6700"},
	},
}

var dark = colors{
	back: "#0d1117", text: "#e6edf3", faint: "#9aa4af", line: "#9aa4af",
	boxes: map[string][2]string{
		"plain":   {"#161b22", "#6e7681"},
		"head":    {"#21262d", "#6e7681"},
		"hostile": {"#33200f", "#db6d28"},
		"cloche":  {"#0f2440", "#388bfd"},
		"host":    {"#161b22", "#8b949e"},
		"outside": {"#271a3d", "#a371f7"},
		"good":    {"#10281a", "#3fb950"},
		"bad":     {"#35151a", "#f85149"},
		"part":    {"#2d230c", "#d29922"},
	},
}

// css returns the rules of one scheme.
func (c colors) css(indent string) string {
	var b bytes.Buffer
	rule := func(format string, args ...any) { fmt.Fprintf(&b, indent+format+"\n", args...) }
	rule(".back { fill: %s; stroke: none }", c.back)
	rule(".text { fill: %s }", c.text)
	rule(".label { fill: %s }", c.faint)
	rule(".line { fill: none; stroke: %s }", c.line)
	rule(".tip { fill: %s; stroke: none }", c.line)
	for _, s := range styles {
		rule(".%s { fill: %s; stroke: %s }", s, c.boxes[s][0], c.boxes[s][1])
	}
	return b.String()
}

// svg draws a picture. It has no scripts and no references to other files.
func (p *picture) svg() []byte {
	var b bytes.Buffer
	line := func(format string, args ...any) { fmt.Fprintf(&b, format+"\n", args...) }
	w, h := num(p.width), num(p.height)
	line(`<svg xmlns="http://www.w3.org/2000/svg" width="%s" height="%s" viewBox="0 0 %s %s" role="img" aria-labelledby="title desc" font-family="sans-serif" font-size="12">`, w, h, w, h)
	line(`<!-- Written by go run ./.ci/pictures. Edit the .txt file. -->`)
	line(`<title id="title">%s</title>`, html.EscapeString(p.title))
	line(`<desc id="desc">%s</desc>`, html.EscapeString(p.desc))
	line("<style>")
	b.WriteString(light.css(""))
	line("@media (prefers-color-scheme: dark) {")
	b.WriteString(dark.css("  "))
	line("}")
	line("</style>")
	line(`<rect class="back" width="%s" height="%s" rx="6"/>`, w, h)
	line(`<text class="text" x="20" y="27" font-size="%d" font-weight="bold">%s</text>`, titleSize, html.EscapeString(p.title))
	for _, f := range p.frames {
		f.draw(line)
		r := f.labelRect()
		for i, t := range f.text {
			_, t, bold := textWidth(t)
			words(line, "text", "start", r.x0, r.y0+12+float64(i)*lineHeight, t, bold)
		}
	}
	for _, a := range p.arrows {
		a.draw(line)
	}
	for _, it := range p.boxes {
		if it.kind == "box" {
			it.draw(line)
		}
		r := it.rectangle
		class := "text"
		if it.kind == "note" {
			class = "label"
		}
		top := (r.y0+r.y1)/2 - lineHeight*float64(len(it.text))/2
		for i, t := range it.text {
			_, t, bold := textWidth(t)
			words(line, class, "middle", (r.x0+r.x1)/2, top+12+float64(i)*lineHeight, t, bold)
		}
	}
	line("</svg>")
	return b.Bytes()
}

// draw draws the rectangle of a frame or a box.
func (it *item) draw(line func(string, ...any)) {
	r := it.rectangle
	dash := ""
	if it.kind == "frame" {
		dash = ` stroke-dasharray="6 3"`
	}
	line(`<rect class="%s" x="%s" y="%s" width="%s" height="%s" rx="5"%s/>`, it.style, num(r.x0), num(r.y0), num(r.width()), num(r.height()), dash)
}

// draw draws an arrow with its heads and its label.
func (a *arrow) draw(line func(string, ...any)) {
	last := len(a.points) - 1
	path := ""
	for i, pt := range a.points {
		switch { // The line ends inside the head.
		case i == last:
			pt = towards(pt, a.points[last-1], 6)
		case i == 0 && a.both:
			pt = towards(pt, a.points[1], 6)
		}
		path += string("ML"[min(i, 1)]) + num(pt.x) + " " + num(pt.y)
	}
	dash := ""
	if a.dashed {
		dash = ` stroke-dasharray="4 3"`
	}
	line(`<path class="line" d="%s" stroke-width="1.5"%s/>`, path, dash)
	tip(line, a.points[last], a.points[last-1])
	if a.both {
		tip(line, a.points[0], a.points[1])
	}
	if len(a.text) == 0 {
		return
	}
	r := a.labelRect()
	x, anchor := (r.x0+r.x1)/2, "middle"
	if part := a.partRect(a.labelPart()); part.height() > part.width() {
		x, anchor = r.x0, "start"
		if a.side == "left" {
			x, anchor = r.x1, "end"
		}
	}
	for i, t := range a.text {
		_, t, bold := textWidth(t)
		words(line, "label", anchor, x, r.y0+12+float64(i)*lineHeight, t, bold)
	}
}

// tip draws the head of an arrow at a point. The arrow comes from the other point.
func tip(line func(string, ...any), at, from point) {
	base := towards(at, from, 9)
	dx, dy := (base.y-at.y)/2, (base.x-at.x)/2
	line(`<path class="tip" d="M%s %sL%s %sL%s %sZ"/>`, num(at.x), num(at.y), num(base.x+dx), num(base.y+dy), num(base.x-dx), num(base.y-dy))
}

// towards returns the point that is n pixels from one point in the direction of another. The
// two are on a horizontal or a vertical line.
func towards(from, to point, n float64) point {
	switch {
	case to.x > from.x:
		from.x += n
	case to.x < from.x:
		from.x -= n
	case to.y > from.y:
		from.y += n
	case to.y < from.y:
		from.y -= n
	}
	return from
}

// words writes one line of text.
func words(line func(string, ...any), class, anchor string, x, y float64, text string, bold bool) {
	weight := ""
	if bold {
		weight = ` font-weight="bold"`
	}
	line(`<text class="%s" x="%s" y="%s" text-anchor="%s"%s>%s</text>`, class, num(x), num(y), anchor, weight, html.EscapeString(text))
}

// num writes a length with at most one decimal.
func num(n float64) string {
	s := strconv.FormatFloat(n, 'f', 1, 64)
	if s[len(s)-2:] == ".0" {
		return s[:len(s)-2]
	}
	return s
}
