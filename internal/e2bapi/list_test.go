package e2bapi

import (
	"maps"
	"net/url"
	"testing"
	"time"
)

// The filter for metadata is escaped more than once, as npm's e2b 2.51 sends it.
func TestMetadataFilter(t *testing.T) {
	q, err := url.ParseQuery("metadata=k%2525201%3Dv%252526%25253D2&state=running,paused&limit=2&startedAfter=2026-01-02T03:04:05.000006Z&order=asc")
	if err != nil {
		t.Fatal(err)
	}
	f, err := parseFilter(q)
	if err != nil {
		t.Fatal(err)
	}
	if !maps.Equal(f.metadata, map[string]string{"k 1": "v&=2"}) || len(f.states) != 2 || f.limit != 2 || !f.oldest {
		t.Errorf("%+v", f)
	}
	if at := time.Date(2026, 1, 2, 3, 4, 5, 6000, time.UTC); !f.after.Equal(at) {
		t.Errorf("after %s", f.after)
	}
	for _, bad := range []string{"limit=0", "limit=101", "limit=x", "nextToken=x", "nextToken=eA", "startedAfter=x", "template=a:b", "metadata=%25zz"} {
		q, err := url.ParseQuery(bad)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := parseFilter(q); err == nil {
			t.Errorf("%s is taken", bad)
		}
	}
}

// A cursor is the last of its page: the next page begins after it, in both orders.
func TestCursor(t *testing.T) {
	c := cursor{time.Date(2026, 1, 2, 3, 4, 5, 678, time.UTC), "abc"}
	back, err := parseCursor(c.String())
	if err != nil || back.id != c.id || !back.started.Equal(c.started) {
		t.Fatalf("%+v, %v", back, err)
	}
	older, same := cursor{c.started.Add(-1), "zzz"}, cursor{c.started, "abd"}
	if f := (filter{}); f.compare(c, older) >= 0 || f.compare(same, c) >= 0 {
		t.Error("newest first")
	}
	if f := (filter{oldest: true}); f.compare(older, c) >= 0 || f.compare(c, same) >= 0 {
		t.Error("oldest first")
	}
}

func FuzzParseFilter(f *testing.F) {
	f.Add("metadata=k%2525201%3Dv%252526%25253D2&state=running,paused&limit=2")
	f.Add("nextToken=MjAyNi0wMS0wMlQwMzowNDowNVpfX2FiYw&order=asc&template=base")
	f.Fuzz(func(t *testing.T, query string) {
		q, err := url.ParseQuery(query)
		if err != nil {
			return
		}
		got, err := parseFilter(q)
		if err == nil && (got.limit < 1 || got.limit > maxPage) {
			t.Errorf("a page of %d", got.limit)
		}
	})
}
