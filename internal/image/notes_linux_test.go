package image

import (
	"fmt"
	"testing"
)

// TestNotesOfLayers: notes name as many kinds as the bound says, and count the rest.
func TestNotesOfLayers(t *testing.T) {
	var d dropped
	if d.notes() != nil {
		t.Errorf("notes of nothing are %q", d.notes())
	}
	for i := range maxNotes + 2 {
		d.add(fmt.Sprintf("kind %02d", i), fmt.Sprint("file", i))
	}
	d.add("kind 00", "again")
	d.add("kind 00", "again")
	notes := d.notes()
	if len(notes) != maxNotes+1 || notes[0] != "kind 00 of /file0 is left out, and of 2 more" || notes[1] != "kind 01 of /file1 is left out" ||
		notes[maxNotes] != fmt.Sprintf("something of /file%d is left out, and of 1 more", maxNotes) {
		t.Errorf("%d notes: %q", len(notes), notes)
	}
}
