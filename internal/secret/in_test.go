package secret_test

import (
	"testing"

	"github.com/cloche-dev/cloche/internal/secret"
)

func TestInWithoutRedactor(t *testing.T) {
	type text struct{ Words []string }
	v := text{Words: []string{"a", "b"}}
	if got := secret.In(nil, v); len(got.Words) != 2 || got.Words[1] != "b" {
		t.Errorf("got %v", got)
	}
}
