package hostfile

import (
	"errors"
	"testing"

	"golang.org/x/sys/windows"
)

// TestStrangers: an access list is judged by every entry that allows something now.
func TestStrangers(t *testing.T) {
	user, all, err := trusted()
	if err != nil {
		t.Fatal(err)
	}
	me := user.String()
	for text, alone := range map[string]bool{
		"O:" + me + "D:P(A;OICI;FA;;;SY)(A;OICI;FA;;;BA)(A;OICI;FA;;;" + me + ")": true,
		"O:BAD:(A;;FA;;;" + me + ")":                               true,
		"O:" + me + "D:(A;;FA;;;" + me + ")(A;OICIIO;FA;;;CO)":     true,
		"O:" + me + "D:(D;;FA;;;WD)(A;;FA;;;" + me + ")":           true,
		"O:" + me + "D:(A;;FA;;;" + me + ")(A;;FR;;;WD)":           false,
		"O:" + me + "D:(A;;FA;;;" + me + ")(A;OICI;0x100000;;;AU)": false,
		"O:" + me + "D:(A;;FA;;;BU)":                               false,
		"O:WDD:(A;;FA;;;" + me + ")":                               false,
		"O:" + me:                                                  false,
	} {
		sd, err := windows.SecurityDescriptorFromString(text)
		if err != nil {
			t.Fatalf("%s: %v", text, err)
		}
		err = strangers(sd, all)
		if _, told := errors.AsType[*ForeignError](err); told == alone || alone && err != nil {
			t.Errorf("%s: %v", text, err)
		}
	}
}
