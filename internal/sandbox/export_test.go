package sandbox

import "testing"

// EngineStateForTest reads what a record keeps of the engine.
func EngineStateForTest(t *testing.T, dir string) []byte {
	t.Helper()
	r, err := readRecord(dir)
	if err != nil {
		t.Fatal(err)
	}
	return r.EngineState
}
