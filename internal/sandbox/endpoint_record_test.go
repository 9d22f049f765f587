package sandbox

import (
	"context"
	"slices"
	"testing"

	"github.com/cloche-dev/cloche/api"
)

// TestExchangesThatWait: the records of what went through endpoints wait in a queue. When
// it is full the oldest gives way and is counted, nobody waits, and what of a capture
// would be too much is left out, which the record says.
func TestExchangesThatWait(t *testing.T) {
	const room, all = 3, 10
	m := &Manager{exchanges: make(chan api.Exchange, room)}
	e := &servedEndpoint{name: "model"}
	w := &watchEndpoint{m: m, e: e}
	for i := range all {
		w.Exchanged(api.Exchange{BytesIn: int64(i), Capture: &api.ExchangeCapture{RequestBody: "0123456789"}})
	}
	if got := e.unrecorded.Load(); got != all-room {
		t.Errorf("%d are counted as lost, want %d", got, all-room)
	}
	for i := all - room; i < all; i++ {
		if x := <-m.exchanges; x.BytesIn != int64(i) {
			t.Errorf("the record of exchange %d is there, want %d", x.BytesIn, i)
		}
	}
	if got := m.captured.Load(); got != room*10 {
		t.Errorf("%d bytes of captures are counted, want %d", got, room*10)
	}
	m.captured.Store(maxCaptured - 5)
	w.Exchanged(api.Exchange{Capture: &api.ExchangeCapture{RequestBody: "0123456789"}})
	if x := <-m.exchanges; x.Capture.Size() != 0 || len(x.Capture.Omitted) != 1 {
		t.Errorf("%+v", x.Capture)
	}
	// Where nobody is told, nothing waits.
	(&watchEndpoint{m: &Manager{}, e: e}).Exchanged(api.Exchange{})
}

// The records that wait when the Manager closes are told, and what they hold is free again.
func TestExchangesAreToldAtTheEnd(t *testing.T) {
	var told []int64
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	m := &Manager{ctx: ctx, exchanges: make(chan api.Exchange, 3), opts: Options{Exchanged: func(x api.Exchange) { told = append(told, x.BytesIn) }}}
	w := &watchEndpoint{m: m, e: &servedEndpoint{name: "model"}}
	for i := range 3 {
		w.Exchanged(api.Exchange{BytesIn: int64(i), Capture: &api.ExchangeCapture{RequestBody: "0123456789"}})
	}
	m.tellExchanges()
	if !slices.Equal(told, []int64{0, 1, 2}) || m.captured.Load() != 0 {
		t.Errorf("told %v, and %d bytes are held", told, m.captured.Load())
	}
}
