package process

import (
	"strings"
	"testing"
)

func TestFit(t *testing.T) {
	rows := [][]string{{"id", strings.Repeat("é", 40), strings.Repeat("b", 40)}, {"i", "short", ""}}
	fit([]string{"ID", "COMMAND", "LAST"}, rows, 60)
	if got := rows[0][1] + "|" + rows[0][2]; got != strings.Repeat("é", 40)+"|"+strings.Repeat("b", 13)+"…" {
		t.Errorf("at 60: %q", got)
	}
	fit([]string{"ID", "COMMAND", "LAST"}, rows, 10)
	if got := rows[0][1] + "|" + rows[0][2] + "|" + rows[1][1]; got != strings.Repeat("é", 11)+"…|"+strings.Repeat("b", 11)+"…|short" {
		t.Errorf("at 10: %q", got)
	}
}
