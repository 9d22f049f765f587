package image

import (
	"fmt"
	"os"
	"strings"
	"sync"
	"testing"
)

func TestPullsAtOnceAreOne(t *testing.T) {
	r := startRegistry(t)
	r.push(t, "app:1", simple(t))
	r.push(t, "app:2", simple(t))
	s := images(t)
	var wg sync.WaitGroup
	for i := range 10 {
		store := s
		if i%2 == 1 {
			store = openStore(t, s.dir) // as another process
		}
		wg.Go(func() {
			if _, err := store.Pull(t.Context(), fmt.Sprintf("%s/app:%d", r.host, 1+i%3%2), PullOptions{}); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	blobs := map[string]int{}
	for _, line := range r.asked() {
		if strings.HasPrefix(line, "GET ") && strings.Contains(line, "/blobs/") {
			blobs[line[strings.LastIndex(line, "/"):]]++
		}
	}
	for blob, n := range blobs {
		if n != 1 {
			t.Errorf("%s was fetched %d times", blob, n)
		}
	}
	if l := s.List(); len(l) != 3 || l[1].Digest != l[2].Digest || l[1].Name != r.host+"/app:1" {
		t.Errorf("images are %+v", l)
	}
	for _, sub := range []string{"temp", "locks"} {
		if left, _ := os.ReadDir(s.oci.at(sub)); len(left) != 0 {
			t.Errorf("%s holds %v", sub, left)
		}
	}
}
