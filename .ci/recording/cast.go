package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"regexp"
	"strings"
	"time"
)

// cast is a recording in version 2 of asciinema's format: a line with a header, and a line
// for each event.
type cast struct {
	header header
	events []event
}

type header struct {
	Version int    `json:"version"`
	Width   int    `json:"width"`
	Height  int    `json:"height"`
	Title   string `json:"title,omitempty"`
}

// event is output at a time after the start.
type event struct {
	at   time.Duration
	text string
}

// encode returns the file.
func (c *cast) encode() []byte {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	e.Encode(c.header)
	for _, v := range c.events {
		e.Encode([]any{float64(v.at.Milliseconds()) / 1000, "o", v.text})
	}
	return b.Bytes()
}

// decode reads the file.
func decode(file []byte) (*cast, error) {
	d := json.NewDecoder(bytes.NewReader(file))
	var c cast
	if err := d.Decode(&c.header); err != nil {
		return nil, err
	}
	if h := c.header; h.Version != 2 || h.Width < 1 || h.Width > 500 || h.Height < 1 || h.Height > 500 {
		return nil, fmt.Errorf("unusable header %+v", h)
	}
	for d.More() {
		var at float64
		var kind, text string
		if err := d.Decode(&[]any{&at, &kind, &text}); err != nil {
			return nil, err
		}
		if kind == "o" {
			when := time.Duration(at * float64(time.Second)).Round(time.Millisecond)
			c.events = append(c.events, event{when, text})
		}
	}
	if len(c.events) == 0 {
		return nil, fmt.Errorf("no output")
	}
	return &c, nil
}

var colour = regexp.MustCompile(`\x1b\[[0-9;]*m`)

// text returns all output without colours.
func (c *cast) text() string {
	var b strings.Builder
	for _, v := range c.events {
		b.WriteString(v.text)
	}
	return colour.ReplaceAllString(b.String(), "")
}
