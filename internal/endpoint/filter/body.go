package filter

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"unicode/utf8"
)

var (
	// ErrUnreadable: two readers could read the body differently, so that it is not known
	// what the provider would do.
	ErrUnreadable = errors.New("the body is not plain JSON that all read alike")
	// ErrModel: the model looks outside by itself, and cannot be kept from it.
	ErrModel = errors.New("the model searches by itself")
)

const (
	// maxDepth bounds content in content.
	maxDepth = 12
	// maxNesting bounds the whole.
	maxNesting = 256
	// maxMembers and maxElements bound what is looked into.
	maxMembers  = 4096
	maxElements = 1 << 16
	// maxPaths bounds what is told of.
	maxPaths = 64
)

// note stands where a part of a message was: a message without content is refused by
// some providers, and the model should know.
const note = "[removed: this sandbox has no network, and what stood here is for the provider to fetch]"

// Strip takes out of the body of a Model request what the provider would do by itself:
// tools that it runs, addresses that it fetches, files that it keeps. It returns the
// paths of what it took; with none, out is body itself.
func Strip(body []byte) (out []byte, removed []string, err error) {
	if !utf8.Valid(body) || nesting(body) > maxNesting || !json.Valid(body) {
		return nil, nil, ErrUnreadable
	}
	s := &stripper{}
	top, err := members(body)
	if err != nil {
		return nil, nil, err
	}
	if top, err = s.request(top); err != nil {
		return nil, nil, err
	}
	if s.count == 0 {
		return body, nil, nil
	}
	return object(top), s.removed, nil
}

type stripper struct {
	// count is how much was taken out, removed the paths of the first of it.
	count   int
	removed []string
}

func (s *stripper) took(path string) {
	s.count++
	if len(s.removed) < maxPaths {
		s.removed = append(s.removed, path)
	}
}

// capabilities are members of a request that make a provider look outside, in some
// dialect. No value but null and false is harmless.
var capabilities = []string{
	"web_search_options", "web_search", "enable_search", "enable_web_search", "search_parameters", "search_options", "google_search",
	"mcp_servers", "container", "tool_resources", "plugins", "data_sources", "connectors", "server_tools", "file_ids", "vector_store_ids",
	"attachments",
}

// request is the top level.
func (s *stripper) request(top []member) ([]member, error) {
	var out []member
	for _, m := range top {
		var err error
		switch {
		case slices.Contains(capabilities, m.name):
			if !nothing(m.value) {
				s.took(m.name)
				continue
			}
		case m.name == "model" || m.name == "models":
			err = searching(m.value)
		case m.name == "prompt" && kindOf(m.value) == '{':
			s.took(m.name) // kept by the provider, with tools of its own
			continue
		case m.name == "tools":
			if m.value, err = s.tools(m.name, m.value); err == nil && m.value == nil {
				continue
			}
		case m.name == "messages" || m.name == "input" || m.name == "system":
			style := "text"
			if m.name == "input" {
				style = "input_text"
			}
			m.value, err = s.content(m.name, m.value, style, 0)
		}
		if err != nil {
			return nil, err
		}
		out = append(out, m)
	}
	return s.choice(out)
}

// choice takes out what chooses among tools that are there no more.
func (s *stripper) choice(top []member) ([]member, error) {
	toolless := s.count > 0 && !slices.ContainsFunc(top, func(m member) bool { return m.name == "tools" })
	var out []member
	for _, m := range top {
		if toolless && (m.name == "tool_choice" || m.name == "parallel_tool_calls") {
			s.took(m.name)
			continue
		}
		if m.name == "tool_choice" && kindOf(m.value) == '{' {
			parts, err := members(m.value)
			if err != nil {
				return nil, err
			}
			switch typeOf(parts) {
			case "function", "custom", "tool", "any", "auto", "none", "required":
			case "allowed_tools":
				if parts, err = s.nested(m.name, parts); err != nil {
					return nil, err
				}
				m.value = object(parts)
			default:
				s.took(m.name)
				continue
			}
		}
		out = append(out, m)
	}
	return out, nil
}

// ours are the types of tools that the client runs.
var ours = regexp.MustCompile(`^(function|custom|local_shell|apply_patch|computer|computer_use_preview|(bash|text_editor|computer|memory)_[0-9]{8})$`)

// tools keeps those that the client runs; nil is that none is left.
func (s *stripper) tools(path string, raw []byte) ([]byte, error) {
	if nothing(raw) {
		return raw, nil
	}
	all, err := elements(raw)
	if err != nil {
		return nil, err
	}
	var out [][]byte
	for i, t := range all {
		keep := false
		if kindOf(t) == '{' {
			parts, err := members(t)
			if err != nil {
				return nil, err
			}
			typ := slices.IndexFunc(parts, func(m member) bool { return m.name == "type" })
			schema := slices.ContainsFunc(parts, func(m member) bool { return m.name == "input_schema" })
			keep = ours.MatchString(typeOf(parts)) || typ < 0 && schema
		}
		if !keep {
			s.took(fmt.Sprintf("%s[%d]", path, i))
			continue
		}
		out = append(out, t)
	}
	switch {
	case len(out) == len(all):
		return raw, nil
	case len(out) == 0:
		return nil, nil
	}
	return array(out), nil
}

// content strips the content of a message, or the messages themselves.
func (s *stripper) content(path string, raw []byte, style string, depth int) ([]byte, error) {
	if depth > maxDepth {
		return nil, ErrUnreadable
	}
	switch kindOf(raw) {
	case '[':
		all, err := elements(raw)
		if err != nil {
			return nil, err
		}
		before := s.count
		for i, e := range all {
			if all[i], err = s.content(fmt.Sprintf("%s[%d]", path, i), e, style, depth+1); err != nil {
				return nil, err
			}
		}
		if s.count == before {
			return raw, nil
		}
		return array(all), nil
	case '{':
		parts, err := members(raw)
		if err != nil {
			return nil, err
		}
		if s.fetched(parts) {
			s.took(path)
			return placeholder(style), nil
		}
		for _, m := range parts {
			if m.name == "role" && string(m.value) == `"assistant"` && style == "input_text" {
				style = "output_text"
			}
		}
		before := s.count
		if parts, err = s.inner(path, parts, style, depth); err != nil {
			return nil, err
		}
		if s.count == before {
			return raw, nil
		}
		return object(parts), nil
	}
	return raw, nil
}

// inner looks into the members of a message or part that hold others. What a model
// said to a tool is in others, and must not be changed.
func (s *stripper) inner(path string, parts []member, style string, depth int) ([]member, error) {
	parts, err := s.nested(path, parts)
	if err != nil {
		return nil, err
	}
	for i, m := range parts {
		at := path + "." + m.name
		switch m.name {
		case "content":
			parts[i].value, err = s.content(at, m.value, style, depth+1)
		case "output":
			within := style
			if style == "output_text" {
				within = "input_text"
			}
			parts[i].value, err = s.content(at, m.value, within, depth+1)
		case "source":
			if kindOf(m.value) == '{' {
				parts[i].value, err = s.content(at, m.value, style, depth+1)
			}
		}
		if err != nil {
			return nil, err
		}
	}
	return parts, nil
}

// nested takes tools out that come within something else.
func (s *stripper) nested(path string, parts []member) ([]member, error) {
	var out []member
	for _, m := range parts {
		if m.name == "tools" {
			v, err := s.tools(path+".tools", m.value)
			if err != nil {
				return nil, err
			}
			if v == nil {
				v = []byte("[]")
			}
			m.value = v
		}
		out = append(out, m)
	}
	return out, nil
}

func placeholder(style string) []byte {
	return fmt.Appendf(nil, `{"type":%q,"text":%q}`, style, note)
}

// fetched says whether a part of a message is for the provider to fetch, or names a
// file that the provider keeps.
func (s *stripper) fetched(parts []member) bool {
	typ := typeOf(parts)
	if typ == "container_upload" {
		return true
	}
	for _, m := range parts {
		switch name := m.name; {
		case name == "current_url" || name == "type" || name == "text":
		case name == "file_id" || name == "file_ids" || name == "vector_store_ids":
			if !nothing(m.value) {
				return true
			}
		case name == "source" && kindOf(m.value) == '{':
			if source, err := members(m.value); err != nil || !slices.Contains([]string{"base64", "text", "content"}, typeOf(source)) {
				return true
			}
		case name == "url" || name == "uri" || strings.HasSuffix(name, "_url") || strings.HasSuffix(name, "_uri") || name == "fileuri":
			if !nothing(m.value) && !inline(m.value, true) {
				return true
			}
		case slices.Contains([]string{"image", "video", "audio", "file", "document", "input_audio", "media", "file_data", "filedata"}, name):
			if !inline(m.value, false) {
				return true
			}
		}
	}
	return false
}

// inline says whether a medium is here with all of its bytes. A string that must be an
// address is so only as a data URL.
func inline(raw []byte, address bool) bool {
	switch kindOf(raw) {
	case '"':
		text := raw[1:min(len(raw), 256)]
		if bytes.IndexByte(text, '\\') >= 0 {
			var whole string
			if json.Unmarshal(raw, &whole) != nil {
				return false
			}
			text = []byte(whole[:min(len(whole), 256)])
		}
		trimmed := strings.TrimLeft(string(text), " \t\r\n\x00")
		if strings.HasPrefix(fold(trimmed), "data:") {
			return true
		}
		return !address && !strings.Contains(trimmed, "://") && !strings.HasPrefix(trimmed, "//")
	case '{':
		parts, err := members(raw)
		if err != nil {
			return false
		}
		for _, m := range parts {
			named := m.name == "url" || m.name == "uri" || strings.HasSuffix(m.name, "_url") || strings.HasSuffix(m.name, "_uri") || m.name == "fileuri"
			switch {
			case m.name == "file_id" || m.name == "id":
				if !nothing(m.value) {
					return false
				}
			case m.name == "detail" || m.name == "filename" || m.name == "format":
			case !nothing(m.value) && !inline(m.value, named):
				return false
			}
		}
	case '[':
		all, err := elements(raw)
		if err != nil || len(all) > 64 {
			return false
		}
		for _, e := range all {
			if !inline(e, address) {
				return false
			}
		}
	}
	return true
}

// searchers are the names of models that look outside whatever the request says.
var searchers = regexp.MustCompile(`:online$|-search-(preview|api)([-:]|$)|(^|[-_/])deep-research([-_/:.]|$)|(^|/)sonar([-:]|$)`)

func searching(raw []byte) error {
	switch kindOf(raw) {
	case '"':
		var name string
		if json.Unmarshal(raw, &name) != nil {
			return ErrUnreadable
		}
		if searchers.MatchString(fold(strings.TrimSpace(name))) {
			return ErrModel
		}
	case '[':
		all, err := elements(raw)
		if err != nil {
			return err
		}
		for _, e := range all {
			if err := searching(e); err != nil {
				return err
			}
		}
	}
	return nil
}
