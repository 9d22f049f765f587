package e2bapi

import (
	"net/http"
	"net/http/httptest"
	"slices"
	"testing"

	"github.com/cloche-dev/cloche/api"
)

func TestIDs(t *testing.T) {
	ref := api.NewID("sb-")
	if got, ok := refOf(idOf(ref)); !ok || got != ref {
		t.Errorf("%s became %s", ref, got)
	}
	if got, ok := refOf(idOf(ref) + "-client"); !ok || got != ref {
		t.Errorf("with a client id: %s", got)
	}
	for _, bad := range []string{"", "-x", "ABC", "a/b", "..", "a.b", "a%2f", string(make([]byte, 50))} {
		if ref, ok := refOf(bad); ok {
			t.Errorf("%q is %s", bad, ref)
		}
	}
}

func TestEgressOf(t *testing.T) {
	no := false
	for name, tc := range map[string]struct {
		network  *network
		internet *bool
		settings []string

		want        string
		allow, deny []string
		status      int
	}{
		"the profile's":           {},
		"settings":                {settings: []string{"*"}, want: api.NetworkOn, allow: []string{"*"}},
		"no internet":             {internet: &no, settings: []string{"*"}, want: api.NetworkNone},
		"no internet by range":    {network: &network{DenyOut: []string{allTraffic}}, want: api.NetworkNone},
		"names and the rest not":  {network: &network{AllowOut: []string{"*.Example.org", "1.1.1.1"}, DenyOut: []string{allTraffic}}, want: api.NetworkOn, allow: []string{"*.example.org", "1.1.1.1"}},
		"names only":              {network: &network{AllowOut: []string{"example.org"}}, status: http.StatusBadRequest},
		"everything":              {network: &network{AllowOut: []string{allTraffic}, DenyOut: []string{"8.8.8.8/32"}}, want: api.NetworkOn, allow: []string{"*"}, deny: []string{"8.8.8.8"}},
		"a name cannot be denied": {network: &network{DenyOut: []string{"example.org"}}, status: http.StatusBadRequest},
		"a range":                 {network: &network{DenyOut: []string{"10.0.0.0/8"}}, status: http.StatusNotImplemented},
		"a proxy":                 {network: &network{EgressProxy: map[string]any{"address": "x:1"}}, status: http.StatusForbidden},
		"headers":                 {network: &network{Rules: map[string]any{"a": 1}}, status: http.StatusNotImplemented},
		"TLS to ports":            {network: &network{HTTPSPorts: []int{443}}, status: http.StatusNotImplemented},
	} {
		s := &Server{allow: tc.settings, redact: func(text string) string { return text }}
		nw, egress, err := s.egressOf(tc.network, tc.internet)
		if tc.status != 0 {
			if got := s.toWire(err).Code; err == nil || got != tc.status {
				t.Errorf("%s: %v, want status %d", name, err, tc.status)
			}
			continue
		}
		if err != nil || nw != tc.want {
			t.Errorf("%s: network %q, %v", name, nw, err)
			continue
		}
		if egress == nil {
			egress = &api.Egress{}
		}
		if !slices.Equal(egress.Allow, tc.allow) || !slices.Equal(egress.Deny, tc.deny) {
			t.Errorf("%s: %+v", name, egress)
		}
	}
}

// A record is found again by the next server, and a damaged file is skipped.
func TestRecords(t *testing.T) {
	dir := t.TempDir()
	kept, err := openRecords(dir)
	if err != nil {
		t.Fatal(err)
	}
	r := record{Sandbox: "sb-a", Caller: callerUser, Token: newToken(), Template: "base", Metadata: map[string]string{"a": "b"}}
	if err := kept.put(r); err != nil {
		t.Fatal(err)
	}
	if err := kept.root.WriteFile("sb-b.json", []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := kept.close(); err != nil {
		t.Fatal(err)
	}
	if kept, err = openRecords(dir); err != nil {
		t.Fatal(err)
	}
	defer kept.close()
	if got := kept.get("sb-a"); got == nil || got.Token != r.Token || got.Metadata["a"] != "b" || len(kept.all()) != 1 {
		t.Errorf("%+v", got)
	}
	if err := kept.remove("sb-a"); err != nil || kept.get("sb-a") != nil {
		t.Errorf("after the removal: %v", err)
	}
}

// A request is routed by the name of its host or by its headers, and headers say nothing where a name does.
func TestTargets(t *testing.T) {
	s := &Server{domain: "sbx.test:443", zone: "sbx.test", records: &records{byID: map[string]*record{}}}
	for name, tc := range map[string]struct {
		host, id, port, url string
		want                target
		byName, fails       bool
	}{
		"control plane":       {host: "127.0.0.1:1"},
		"headers":             {host: "127.0.0.1:1", id: "abc", port: "8000", want: target{"abc", 8000}},
		"one header":          {host: "127.0.0.1:1", id: "abc", fails: true},
		"an invalid port":     {host: "127.0.0.1:1", id: "abc", port: "x", fails: true},
		"name":                {host: "8000-abc.sbx.test:443", want: target{"abc", 8000}, byName: true},
		"name over headers":   {host: "8000-abc.sbx.test", id: "def", port: "49983", want: target{"abc", 8000}, byName: true},
		"name without a port": {host: "abc.sbx.test", byName: true, fails: true},
		"name without an id":  {host: "80-.sbx.test", byName: true, fails: true},
		"the api's name":      {host: "api.sbx.test"},
		"shared name":         {host: "sandbox.sbx.test", id: "abc", port: "1", want: target{"abc", 1}},
		"signed link":         {host: "127.0.0.1:1", url: "/files?path=a&signature=v1_x", want: target{unknownID, envdPort}},
	} {
		url := tc.url
		if url == "" {
			url = "/"
		}
		r := httptest.NewRequest(http.MethodGet, url, nil)
		r.Host = tc.host
		if tc.id != "" {
			r.Header.Set(headerID, tc.id)
		}
		if tc.port != "" {
			r.Header.Set(headerPort, tc.port)
		}
		got, byName, err := s.targetOf(r)
		if (err != nil) != tc.fails || byName != tc.byName || err == nil && got != tc.want {
			t.Errorf("%s: %+v by name %t, %v", name, got, byName, err)
		}
	}
}
