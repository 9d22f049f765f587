package endpoints

import (
	"context"
	"slices"
	"testing"

	"github.com/cloche-dev/cloche/api"
)

// TestExchangesThatWait: the records of exchanges wait in a queue. When it is full, the oldest gives
// way and is counted, and no caller waits. Captures over the limit are left out, which the record
// says.
func TestExchangesThatWait(t *testing.T) {
	const size, all = 3, 10
	s := &Service{o: Options{Redact: func(text string) string { return text }}, exchanges: make(chan api.Exchange, size)}
	e := &served{name: "model"}
	w := &observer{&Table{service: s}, e}
	for i := range all {
		w.Exchanged(api.Exchange{BytesIn: int64(i), Capture: &api.ExchangeCapture{RequestBody: "0123456789"}})
	}
	if got := e.unrecorded.Load(); got != all-size {
		t.Errorf("%d are counted as lost, want %d", got, all-size)
	}
	for i := all - size; i < all; i++ {
		if x := <-s.exchanges; x.BytesIn != int64(i) {
			t.Errorf("the record of exchange %d is there, want %d", x.BytesIn, i)
		}
	}
	if got := s.captured.Load(); got != size*10 {
		t.Errorf("%d bytes of captures are counted, want %d", got, size*10)
	}
	s.captured.Store(maxCaptured - 5)
	w.Exchanged(api.Exchange{Capture: &api.ExchangeCapture{RequestBody: "0123456789"}})
	if x := <-s.exchanges; x.Capture.Size() != 0 || len(x.Capture.Omitted) != 1 {
		t.Errorf("%+v", x.Capture)
	}
	// Without a function that reports them, nothing waits.
	(&observer{&Table{service: &Service{}}, e}).Exchanged(api.Exchange{})
}

// The records that wait when the Manager closes are told, and what they hold is free again.
func TestExchangesAreToldAtTheEnd(t *testing.T) {
	var told []int64
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	s := &Service{o: Options{Context: ctx, Redact: func(text string) string { return text }, Exchanged: func(x api.Exchange) { told = append(told, x.BytesIn) }}, exchanges: make(chan api.Exchange, 3)}
	w := &observer{&Table{service: s}, &served{name: "model"}}
	for i := range 3 {
		w.Exchanged(api.Exchange{BytesIn: int64(i), Capture: &api.ExchangeCapture{RequestBody: "0123456789"}})
	}
	s.reportExchanges()
	if !slices.Equal(told, []int64{0, 1, 2}) || s.captured.Load() != 0 {
		t.Errorf("told %v, and %d bytes are held", told, s.captured.Load())
	}
}
