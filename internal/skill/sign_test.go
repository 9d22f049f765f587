//go:build linux

package skill_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/skill"
)

// What the program minisign made for these two files, in both of its forms.
const (
	signedText = "---\nname: signed\n---\nDo.\n"
	signedPy   = "print(1)\n"
	signedSum  = "676179355fbc0e26ff8786330f21f55d266aff661dca1c7f9d88ff6ffa86354f  ./SKILL.md\ncc42155088fca5730758db72b2a5bca33112a941dfaa2d43098ec422ce4ea213  ./run.py\n"
	signerKey  = "RWT4ivW8FAfSVpOy2Xu7BjNbQcdCf6Gy04eUCgr7vsgorfyWJkgxw3JK"
	signerID   = "56D20714BCF58AF8"
	signature  = `untrusted comment: signature from minisign secret key
RUT4ivW8FAfSVi63LR6k2RwE2rDtoa9LS+mjYjeV9Tv/9shIY1R2zLUqJKwBlACPMNoYziO4Gbyuumi77myi5xs6d07/DtD94Ak=
trusted comment: a skill
pbPWczkrrudGSqe6SFeU380kNEfa8QcSccnUdJozP9LYnuYRy31lE64/drCu/T6kN3TJfbDYlcMzp8/hzJ63BQ==
`
	legacySignature = `untrusted comment: signature from minisign secret key
RWT4ivW8FAfSVmtZO/bdU2Un4nfD0u0aKCNX4x4Z3P7JGCWJa2be8gQX8dUBEmx4p7O4GiVGVD+7CAv6w5+ShTDcapRauZpqvgQ=
trusted comment: legacy
cOyUVuL/phah9x+rrHVGJ5pmB5BHimBuPdwuvaZnQaeMYau2NQUi5RTcqH/0iG9EbLMGnb1S/FRO0/5bb7BuDQ==
`
	otherKey = "RWQf6LRCGA9i53mlYecO4IzT51TGPpvWucNSCh1CBM0QTaLn73Y7GFO3"
)

func TestSigned(t *testing.T) {
	good := map[string]string{"SKILL.md": signedText, "run.py": signedPy, "SKILL.sum": signedSum, "SKILL.sum.minisig": signature}
	for name, c := range map[string]struct {
		change map[string]string
		link   string
		keys   []string
		want   string
	}{
		"as it was signed":        {want: signerID},
		"in the older form":       {change: map[string]string{"SKILL.sum.minisig": legacySignature}, want: signerID},
		"by one of two":           {keys: []string{otherKey, signerKey}, want: signerID},
		"by another key":          {keys: []string{otherKey}},
		"no key is trusted":       {keys: []string{}},
		"a file is other":         {change: map[string]string{"run.py": "print(2)\n"}},
		"a file is more":          {change: map[string]string{"more.py": ""}},
		"a file is less":          {change: map[string]string{"run.py": "-"}},
		"a hidden file is more":   {change: map[string]string{".env": "x"}},
		"a symlink is more":       {link: "SKILL.md"},
		"the list is other":       {change: map[string]string{"SKILL.sum": signedSum + signedSum[:len(signedSum)/2]}},
		"the comment is other":    {change: map[string]string{"SKILL.sum.minisig": strings.Replace(signature, "a skill", "b skill", 1)}},
		"no signature":            {change: map[string]string{"SKILL.sum.minisig": "-"}},
		"no list":                 {change: map[string]string{"SKILL.sum": "-"}},
		"half of a signature":     {change: map[string]string{"SKILL.sum.minisig": signature[:150]}},
		"a signature of one line": {change: map[string]string{"SKILL.sum.minisig": "x"}},
	} {
		t.Run(name, func(t *testing.T) {
			s := skill.Open(t.TempDir())
			dir := filepath.Join(dirOf(s), "signed")
			put(t, dir, good)
			for file, text := range c.change {
				if text == "-" {
					if err := os.Remove(filepath.Join(dir, file)); err != nil {
						t.Fatal(err)
					}
					continue
				}
				put(t, dir, map[string]string{file: text})
			}
			if c.link != "" {
				if err := os.Symlink(c.link, filepath.Join(dir, "link")); err != nil {
					t.Fatal(err)
				}
			}
			if c.keys == nil {
				c.keys = []string{signerKey}
			}
			var signers []skill.Signer
			for _, k := range c.keys {
				signers = append(signers, must[skill.Signer](t)(skill.ParseSigner(k)))
			}
			if got := must[string](t)(s.Signed(t.Context(), tenant, "signed", signers)); got != c.want {
				t.Errorf("signed by %q, want %q", got, c.want)
			}
		})
	}
	for _, bad := range []string{"", "RWT4", "ZZ" + signerKey[2:], signature} {
		_, err := skill.ParseSigner(bad)
		code(t, "key "+bad, err, api.CodeInvalid)
	}
}
