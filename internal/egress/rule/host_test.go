package rule_test

import (
	"testing"

	"github.com/cloche-dev/cloche/internal/egress/rule"
)

func TestHosts(t *testing.T) {
	for in, want := range map[string]string{
		"API.Example.com": "api.example.com", "*.example.com": "*.example.com", "a.org:443": "a.org", "a.org:8443": "a.org:8443",
		"*": "", "1.2.3.4:443": "", "a.org at 10.0.0.0/8": "", "": "", "a b": "", "*.*.a.org": "", "a.org:0": "", "https://a.org": "",
	} {
		h, err := rule.ParseHost(in)
		if (err == nil) != (want != "") || err == nil && h.String() != want {
			t.Errorf("%q is %q, %v", in, h, err)
		}
	}
	for in, want := range map[string]uint16{"a.org": 443, "a.org:443": 443, "a.org:8443": 8443} {
		if h, err := rule.ParseHost(in); err != nil || h.Port != want || !h.Matches("a.org", want) {
			t.Errorf("%q is %+v, %v, want port %d", in, h, err, want)
		}
	}
	wild := rule.Host{Name: "*.example.com", Port: 443}
	for n, want := range map[rule.Name]bool{"a.example.com": true, "a.b.example.com": true, "example.com": false, "evilexample.com": false, "a.example.com.evil.org": false} {
		if wild.Matches(n, 443) != want {
			t.Errorf("%s: %v", n, !want)
		}
	}
}
