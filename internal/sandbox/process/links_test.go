package process

import "testing"

// A connection has as many processes as an agent takes calls on each, and a slot that is
// given back is given away again, once.
func TestProcessesOnOneConnection(t *testing.T) {
	type conn struct{ Conn }
	l := &links{dial: func() Conn { return &conn{} }}
	var free []func()
	first, _ := l.take()
	for range maxPerLink - 1 {
		conn, f := l.take()
		if conn != first {
			t.Fatalf("after %d processes there is another connection", len(free)+1)
		}
		free = append(free, f)
	}
	second, done := l.take()
	if second == first || len(l.conns) != 2 {
		t.Errorf("process %d is on the same connection, of %d", maxPerLink+1, len(l.conns))
	}
	done()
	done()
	if l.users[1] != 0 {
		t.Errorf("the second connection has %d processes", l.users[1])
	}
	free[0]()
	if conn, _ := l.take(); conn != first || l.users[0] != maxPerLink {
		t.Errorf("the free slot was not taken: %d", l.users[0])
	}
	if conn, _ := l.take(); conn != second {
		t.Error("there is a third connection beside an empty one")
	}
}
