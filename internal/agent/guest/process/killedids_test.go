//go:build linux

package process

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cloche-dev/cloche/api"
)

func TestKilledIDsAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var k killedIDs
		for i := range maxKilled + 1 {
			k.add(fmt.Sprint(i), false)
		}
		if k.has("0", false) || !k.has("1", false) || len(k.marks) != maxKilled {
			t.Errorf("%d ids are remembered, of which the oldest is %+v", len(k.marks), k.marks[0])
		}
		time.Sleep(api.KilledMemory - time.Second)
		k.add("late", false)
		if !k.has("2", false) {
			t.Error("forgotten too early")
		}
		time.Sleep(time.Second)
		if k.has("2", false) || !k.has("late", false) {
			t.Error("an id is remembered for too long")
		}
	})
}
