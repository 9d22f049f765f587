package rule

import (
	"fmt"
	"slices"
	"strings"
)

// Item is one line of a list as people write it: a rule, or "@NAME" for the rules of
// a bundle.
type Item struct {
	// Bundle is set for a bundle, and Rule otherwise.
	Bundle string
	Rule   Rule
}

// String is the text form.
func (i Item) String() string {
	if i.Bundle != "" {
		return "@" + i.Bundle
	}
	return i.Rule.String()
}

// maxBundleName bounds the name of a bundle, in bytes.
const maxBundleName = 63

// ParseItem reads one line. The error is an *Error. Whether there is such a bundle is
// for Expand to say.
func ParseItem(s string) (Item, error) {
	name, bundle := strings.CutPrefix(s, "@")
	if !bundle {
		r, err := Parse(s)
		return Item{Rule: r}, err
	}
	if !ValidBundle(name) {
		return Item{}, &Error{Text: quote(s), Why: "this is no name of a bundle", Hint: "write @ and a name of a-z, 0-9 and '-', such as @pypi"}
	}
	return Item{Bundle: name}, nil
}

// ValidBundle says whether a bundle can have that name.
func ValidBundle(name string) bool {
	return name != "" && len(name) <= maxBundleName && strings.Trim(name, "abcdefghijklmnopqrstuvwxyz0123456789-") == "" && name[0] != '-'
}

// Book finds bundles by name: an operator's own go before those that come with
// cloche. The zero value has only the latter.
type Book map[string][]Item

// Names lists every bundle that there is, sorted.
func (b Book) Names() []string {
	var out []string
	for name := range b {
		out = append(out, name)
	}
	for _, own := range Bundles() {
		if _, over := b[own.Name]; !over {
			out = append(out, own.Name)
		}
	}
	slices.Sort(out)
	return out
}

// Expand writes bundles out. The ID of a rule out of a bundle is "@NAME/RULE", by the
// bundle that was asked for; of every other rule it is the text form. The error is an
// *Error: there is no such bundle, or it holds itself.
func (b Book) Expand(items ...Item) ([]Rule, error) {
	out := make([]Rule, 0, len(items))
	for _, i := range items {
		if i.Bundle == "" {
			out = append(out, i.Rule)
			continue
		}
		e := expansion{book: b, done: map[string]bool{}}
		if err := e.add(i.Bundle); err != nil {
			return nil, err
		}
		for _, r := range e.out {
			r.ID = "@" + i.Bundle + "/" + r.String()
			out = append(out, r)
		}
	}
	return out, nil
}

// maxExpanded bounds what bundles of bundles come to.
const maxExpanded = 10_000

// expansion writes one bundle out, each of those in it once.
type expansion struct {
	book Book
	// way are the bundles that hold the present one, done those that are written out.
	way  []string
	done map[string]bool
	out  []Rule
}

func (e *expansion) add(name string) error {
	bad := func(why, hint string) error { return &Error{Text: quote("@" + name), Why: why, Hint: hint} }
	if slices.Contains(e.way, name) {
		return bad("the bundle holds itself: "+strings.Join(append(e.way, name), " > "), "take one of them out of the other")
	}
	if e.done[name] {
		return nil
	}
	own, ok := e.book[name]
	if !ok {
		shipped, ok := FindBundle(name)
		if !ok {
			return bad("there is no such bundle", "the bundles are "+strings.Join(e.book.Names(), ", "))
		}
		e.out = append(e.out, shipped.Rules()...)
	}
	e.way = append(e.way, name)
	for _, i := range own {
		if i.Bundle == "" {
			e.out = append(e.out, i.Rule)
		} else if err := e.add(i.Bundle); err != nil {
			return err
		}
	}
	e.way = e.way[:len(e.way)-1]
	e.done[name] = true
	if len(e.out) > maxExpanded {
		return bad(fmt.Sprintf("the bundle comes to more than %d rules", maxExpanded), "make it smaller")
	}
	return nil
}
