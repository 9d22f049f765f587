package process

import "testing"

func TestParsePorts(t *testing.T) {
	for in, want := range map[string][2]int{"8080:80": {8080, 80}, "0:80": {0, 80}, "9229": {9229, 9229}} {
		if l, r, err := parsePorts(in); err != nil || [2]int{l, r} != want {
			t.Errorf("%q: %d, %d, %v", in, l, r, err)
		}
	}
	for _, in := range []string{"", ":", "80:", ":80", "80:0", "0", "1:2:3", "x:80", "65536:80", "80:65536", "-1:80"} {
		if l, r, err := parsePorts(in); err == nil {
			t.Errorf("%q: %d, %d", in, l, r)
		}
	}
}
