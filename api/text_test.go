package api_test

import (
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/cloche-dev/cloche/api"
)

// TestTruncateText: what a model reads of a text, to the character.
func TestTruncateText(t *testing.T) {
	const limit = api.DefaultOutputChars
	rep := func(n int) string { return strings.Repeat("ab", n/2) + strings.Repeat("a", n%2) }
	cut := func(head int, notice string, tail int) string {
		return rep(head) + "\n\n... [" + notice + " characters truncated] ...\n\n" + strings.Repeat("z", tail)
	}
	for _, tc := range []struct {
		name, text string
		limit      int
		want       string
		cut        bool
	}{
		{"empty", "", 0, "", false},
		{"empty with room", "", limit, "", false},
		{"as long as it may be", rep(4000), limit, rep(4000), false},
		// Of 4000 characters the notice has 37, so 3963 are left: 2377 and 1586.
		{"one more", rep(2415) + strings.Repeat("z", 1586), limit, cut(2377, "38", 1586), true},
		// 41 of the notice, 3959 left: 2375 and 1584.
		{"a million", rep(998416) + strings.Repeat("z", 1584), limit, cut(2375, "996041", 1584), true},
		{"no room at all", "abc", 0, "", true},
		{"room for a part of the notice", rep(100), 10, "\n\n... [100", true},
		{"exactly the notice", rep(100), 38, "\n\n... [100 characters truncated] ...\n\n", true},
		// 60 - 38 = 22, of which the notice needs one less when two digits are enough.
		{"sixty", rep(50) + strings.Repeat("z", 50), 60, cut(13, "77", 10), true},
		{"characters of several bytes, whole", strings.Repeat("界", 4000), limit, strings.Repeat("界", 4000), false},
		{"characters of several bytes, cut", strings.Repeat("界", 4001), limit, strings.Repeat("界", 2377) + "\n\n... [38 characters truncated] ...\n\n" + strings.Repeat("界", 1586), true},
		{"of four bytes", strings.Repeat("😀", 61), 60, strings.Repeat("😀", 13) + "\n\n... [38 characters truncated] ...\n\n" + strings.Repeat("😀", 10), true},
		{"negative", "abc", -5, "", true},
		{"nothing, and a negative limit", "", -5, "", false},
	} {
		got, cut := api.TruncateText(tc.text, tc.limit)
		if got != tc.want || cut != tc.cut {
			t.Errorf("%s: %d characters %.60q…, %v; want %d characters %.60q…, %v", tc.name, utf8.RuneCountInString(got), got, cut, utf8.RuneCountInString(tc.want), tc.want, tc.cut)
		}
	}
}

func FuzzTruncateText(f *testing.F) {
	for _, s := range []string{"", "abc", strings.Repeat("x", 200), strings.Repeat("é", 139), "a\xff\xfe界" + strings.Repeat("\xe4\xb8", 90)} {
		for _, n := range []int{0, 1, 10, 37, 38, 60, 137, 138, 139} {
			f.Add(s, n)
		}
	}
	f.Fuzz(func(t *testing.T, text string, limit int) {
		got, cut := api.TruncateText(text, limit)
		n := utf8.RuneCountInString(text)
		if cut != (n > max(limit, 0)) || !cut && got != text {
			t.Fatalf("%d characters, limit %d: cut %v, %q", n, limit, cut, got)
		}
		if !cut {
			return
		}
		if m := utf8.RuneCountInString(got); m != max(limit, 0) && utf8.ValidString(text) {
			t.Fatalf("%d characters, limit %d: %d are left", n, limit, m)
		}
		head, rest, ok := strings.Cut(got, "\n\n... [")
		_, tail, ok2 := strings.Cut(rest, "] ...\n\n")
		if ok && ok2 && !strings.Contains(text, "\n\n... [") && (!strings.HasPrefix(text, head) || !strings.HasSuffix(text, tail)) {
			t.Fatalf("%q is not of %q", got, text)
		}
	})
}

// TestLimitText: the flags are true of either cut, and text is text.
func TestLimitText(t *testing.T) {
	for name, tc := range map[string]struct {
		r              api.Result
		limit          int
		stdout, stderr string
		out, err       bool
		chunks         bool
	}{
		"nothing": {api.Result{}, 10, "", "", false, false, false},
		"fits":    {api.Result{Stdout: api.Bytes("abc"), Chunks: []api.Chunk{{Stream: api.Stdout, Len: 3}}}, 3, "abc", "", false, false, true},
		"cut at the source": {
			api.Result{Stderr: api.Bytes("abc"), StderrInfo: api.StreamCounts{Kept: 3, Dropped: 9}, Truncated: true}, 10, "", "abc", false, true, false,
		},
		"cut here": {
			api.Result{Stdout: api.Bytes("abcdef"), Stderr: api.Bytes("x"), Chunks: []api.Chunk{{Stream: api.Stdout, Len: 6}}}, 3, "\n\n.", "x", true, false, false,
		},
		"no text": {api.Result{Stdout: api.Bytes("a\xff\xfeb")}, 3, "a\uFFFDb", "", false, false, false},
	} {
		tc.r.LimitText(tc.limit)
		r := tc.r
		if string(r.Stdout) != tc.stdout || string(r.Stderr) != tc.stderr || r.StdoutTruncated != tc.out || r.StderrTruncated != tc.err || r.Truncated != (tc.out || tc.err) || (r.Chunks != nil) != tc.chunks {
			t.Errorf("%s: %+v", name, r)
		}
	}
}
