package hostfile

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"unsafe"

	"golang.org/x/sys/windows"
)

// trusted are who may have what is this user's: the user, the system and the machine's
// administrators, who get at everything anyhow.
func trusted() (user *windows.SID, all []*windows.SID, err error) {
	who, err := windows.GetCurrentProcessToken().GetTokenUser()
	if err != nil {
		return nil, nil, fmt.Errorf("ask who this user is: %w", err)
	}
	all = []*windows.SID{who.User.Sid}
	for _, known := range []windows.WELL_KNOWN_SID_TYPE{windows.WinLocalSystemSid, windows.WinBuiltinAdministratorsSid} {
		sid, err := windows.CreateWellKnownSid(known)
		if err != nil {
			return nil, nil, fmt.Errorf("name the system: %w", err)
		}
		all = append(all, sid)
	}
	return who.User.Sid, all, nil
}

func isOneOf(sid *windows.SID, all []*windows.SID) bool {
	for _, s := range all {
		if sid.Equals(s) {
			return true
		}
	}
	return false
}

// strangers says who but the trusted has something, or may have it: its owner, and each
// entry of its access list that allows anything.
func strangers(sd *windows.SECURITY_DESCRIPTOR, all []*windows.SID) error {
	owner, _, err := sd.Owner()
	if err != nil {
		return fmt.Errorf("ask whose it is: %w", err)
	}
	if !isOneOf(owner, all) {
		return &ForeignError{why: "belongs to " + nameOf(owner) + ", and this is another user"}
	}
	dacl, _, err := sd.DACL()
	if err != nil || dacl == nil {
		// None is everybody.
		return &ForeignError{why: "has no access list, so everybody gets at it"}
	}
	for i := range uint32(dacl.AceCount) {
		var ace *windows.ACCESS_ALLOWED_ACE
		if err := windows.GetAce(dacl, i, &ace); err != nil {
			return fmt.Errorf("read the access list: %w", err)
		}
		switch {
		case ace.Header.AceType == windows.ACCESS_DENIED_ACE_TYPE, ace.Header.AceFlags&windows.INHERIT_ONLY_ACE != 0:
			continue
		case ace.Header.AceType != windows.ACCESS_ALLOWED_ACE_TYPE:
			return &ForeignError{why: "has an entry in its access list that is not known"}
		}
		if sid := (*windows.SID)(unsafe.Pointer(&ace.SidStart)); ace.Mask != 0 && !isOneOf(sid, all) {
			return &ForeignError{why: "lets " + nameOf(sid) + " at it"}
		}
	}
	return nil
}

func nameOf(sid *windows.SID) string {
	if account, domain, _, err := sid.LookupAccount(""); err == nil {
		return strings.TrimPrefix(domain+`\`+account, `\`)
	}
	return sid.String()
}

const wanted = windows.OWNER_SECURITY_INFORMATION | windows.DACL_SECURITY_INFORMATION

// CloseDir closes a directory to everybody but this user, the system and the machine's
// administrators. One of another user is a *ForeignError, and so is one on a filesystem
// that keeps no access lists.
func CloseDir(dir string) error {
	user, all, err := trusted()
	if err != nil {
		return err
	}
	sd, err := windows.GetNamedSecurityInfo(dir, windows.SE_FILE_OBJECT, wanted)
	if err != nil {
		return fmt.Errorf("read the access list of %s: %w", dir, err)
	}
	found := strangers(sd, all)
	if _, ok := errors.AsType[*ForeignError](found); !ok {
		return found
	}
	if owner, _, err := sd.Owner(); err != nil || !isOneOf(owner, all) {
		return found
	}
	own, err := windows.SecurityDescriptorFromString("D:P(A;OICI;FA;;;SY)(A;OICI;FA;;;BA)(A;OICI;FA;;;" + user.String() + ")")
	if err != nil {
		return fmt.Errorf("write an access list: %w", err)
	}
	dacl, _, err := own.DACL()
	if err != nil {
		return fmt.Errorf("write an access list: %w", err)
	}
	// What is in there inherits it.
	if err := windows.SetNamedSecurityInfo(dir, windows.SE_FILE_OBJECT, windows.DACL_SECURITY_INFORMATION|windows.PROTECTED_DACL_SECURITY_INFORMATION, nil, nil, dacl, nil); err != nil {
		return fmt.Errorf("close %s to others: %w", dir, err)
	}
	if sd, err = windows.GetNamedSecurityInfo(dir, windows.SE_FILE_OBJECT, wanted); err != nil {
		return fmt.Errorf("read the access list of %s: %w", dir, err)
	}
	return strangers(sd, all)
}

// Guarded says of an open file who but this user, the system and the machine's
// administrators reads or writes it: a *ForeignError, or nil if no other user does.
func Guarded(f *os.File) error {
	_, all, err := trusted()
	if err != nil {
		return err
	}
	sd, err := windows.GetSecurityInfo(windows.Handle(f.Fd()), windows.SE_FILE_OBJECT, wanted)
	if err != nil {
		return fmt.Errorf("read the access list: %w", err)
	}
	return strangers(sd, all)
}
