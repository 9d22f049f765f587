package rule_test

import (
	"net/url"
	"path"
	"strings"
	"testing"
	"unicode"
	"unicode/utf8"

	"github.com/cloche-dev/cloche/internal/egress/rule"
)

func TestReadPath(t *testing.T) {
	for raw, want := range map[string]rule.PathFault{
		"/": rule.PathFine, "/v1/models": rule.PathFine, "/v1/": rule.PathFine, "/a%20b": rule.PathFine, "/caf%C3%A9": rule.PathFine, "/100%25": rule.PathFine,
		"/a;b=c/d": rule.PathFine, "/...a": rule.PathFine, "/a..": rule.PathFine, "/.well-known/x": rule.PathFine, "/a%2Cb": rule.PathFine, "/%E6%9D%B1": rule.PathFine,
		"": rule.PathMalformed, "v1": rule.PathMalformed, "%2fv1": rule.PathMalformed, "/%": rule.PathMalformed, "/%zz": rule.PathMalformed, "/%u002e": rule.PathMalformed,
		// Overlong forms, halves of surrogates, and bytes that are no text.
		"/%c0%ae%c0%ae/x": rule.PathMalformed, "/%C0%AF": rule.PathMalformed, "/%e0%80%ae": rule.PathMalformed, "/%f0%80%80%ae": rule.PathMalformed,
		"/%ed%a0%80": rule.PathMalformed, "/%ff": rule.PathMalformed, "/%e9": rule.PathMalformed, "/\xc0\xae": rule.PathMalformed,
		// Control characters of every kind.
		"/%0d%0a": rule.PathMalformed, "/x%0D%0AHost:%20y": rule.PathMalformed, "/%00": rule.PathMalformed, "/%09": rule.PathMalformed, "/%7f": rule.PathMalformed,
		"/%c2%85": rule.PathMalformed, "/%c2%80": rule.PathMalformed, "/a\nb": rule.PathMalformed,
		"/%5c..": rule.PathMalformed, "/a\\b": rule.PathMalformed,
		"/..": rule.PathDots, "/v1/../x": rule.PathDots, "/%2e%2E": rule.PathDots, "/.": rule.PathDots, "/..;a": rule.PathDots, "/%252e%252e": rule.PathDots,
		"/%25%32%65": rule.PathDots, "/%25252e": rule.PathDots, "/%25zz/%252e%252e/x": rule.PathDots, "/..%2fx": rule.PathDots, "/..%20/x": rule.PathDots, "/.../x": rule.PathDots,
		"/%25u002e%25u002e": rule.PathDots, "/%ef%bc%8e%ef%bc%8e/x": rule.PathDots, "/%e2%80%a5": rule.PathDots, "/a%ef%bc%8f..%ef%bc%8fb": rule.PathDots, "/%255c..": rule.PathDots,
		"//a": rule.PathTwoWays, "/a//b": rule.PathTwoWays, "/a%2fb": rule.PathTwoWays, "/a%252fb": rule.PathTwoWays, "/%2541": rule.PathTwoWays, "/%25zz%2541": rule.PathTwoWays,
		"/%25u0041": rule.PathTwoWays,
	} {
		if _, got := rule.ReadPath(raw); got != want {
			t.Errorf("%q: %d, want %d", raw, got, want)
		}
	}
}

// FuzzReadPath: a path that is taken means the same however often it is decoded and
// cleaned, and nothing in it ends a line.
func FuzzReadPath(f *testing.F) {
	for _, s := range []string{"/v1/x", "/%2e%2e/a", "/%c0%ae%c0%ae/", "/%0d%0a", "/%252e%252e", "/%25zz/%252e./", "/a%2fb", "/..;/a", "/%u002e", "/%ef%bc%8e"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, raw string) {
		decoded, fault := rule.ReadPath(raw)
		if fault != rule.PathFine {
			r := rule.Request{Host: "a.org", Paths: []string{raw}}
			if _, err := r.Canonical(); err == nil && !strings.HasSuffix(raw, "*") {
				t.Errorf("a rule is about %q", raw)
			}
			return
		}
		if !utf8.ValidString(decoded) || strings.ContainsFunc(decoded, unicode.IsControl) || strings.Contains(decoded, "\\") {
			t.Errorf("%q is %q", raw, decoded)
		}
		if c := path.Clean(decoded); c != decoded && c+"/" != decoded {
			t.Errorf("%q means %q", raw, c)
		}
		if again, err := url.PathUnescape(decoded); err == nil && again != decoded {
			t.Errorf("%q means %q when it is decoded twice", raw, again)
		}
	})
}
