package command

import (
	"errors"
	"math"
	"strings"
	"testing"

	"github.com/cloche-dev/cloche/api"
)

func TestParseSize(t *testing.T) {
	for in, want := range map[string]int64{
		"1": 1, "1000000": 1000000, "512m": 512 << 20, "512M": 512 << 20, "512Mi": 512 << 20, "512MiB": 512 << 20,
		"512mb": 512e6, "2GiB": 2 << 30, "2gb": 2e9, "1.5k": 1536, "0.5g": 1 << 29, ".5k": 512, "1.": 1, "7b": 7,
		"8388607t": 8388607 << 40, "9223372036854775807": math.MaxInt64,
	} {
		if got, err := ParseSize("--flag", "limits.memory_bytes", in); err != nil || got != want {
			t.Errorf("parseSize(%q) = %d, %v; want %d", in, got, err, want)
		}
	}
	for _, in := range []string{
		"", " ", "-1", "-5g", "0", "0g", "0.1", "m", ".", "..", "1..2", "1 g", "1e9", "+1", "0x10", "1_000", "1,5g", "5x", "5gg", "١",
		"9223372036854775808", "8388608t", strings.Repeat("9", 41), "NaN", "Inf",
	} {
		if got, err := ParseSize("--flag", "limits.memory_bytes", in); err == nil {
			t.Errorf("parseSize(%q) = %d, want an error", in, got)
		} else if e, ok := errors.AsType[*api.Error](err); !ok || e.Code != api.CodeInvalid || e.Field != "limits.memory_bytes" || e.Hint == "" {
			t.Errorf("parseSize(%q): %#v is not an invalid_argument with field and hint", in, err)
		}
	}
}

func TestParseTimeout(t *testing.T) {
	for in, want := range map[string]int64{
		"0": 0, "0s": 0, "30": 30000, "1.5": 1500, "0.0001": 1, "90s": 90000, "1h30m": 5400000, "1ms": 1, "1ns": 1, "1500us": 2,
	} {
		if got, err := ParseTimeout("--flag", "timeout_ms", in); err != nil || got != want {
			t.Errorf("parseTimeout(%q) = %d, %v; want %d", in, got, err, want)
		}
	}
	for _, in := range []string{"", "-1", "-1s", "1-1s", "s", "5x", "1e3", "999999999999999", "1h-30m", "--1"} {
		if got, err := ParseTimeout("--flag", "timeout_ms", in); err == nil {
			t.Errorf("parseTimeout(%q) = %d, want an error", in, got)
		}
	}
}

func FuzzParseQuantity(f *testing.F) {
	for _, s := range []string{"512m", "1.5GiB", "90s", "0", "-1", "9e9", ".", "1h30m"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		if n, err := ParseSize("--flag", "x", s); err == nil && n <= 0 {
			t.Errorf("parseSize(%q) = %d, which is not more than 0", s, n)
		}
		if n, err := ParseTimeout("--flag", "x", s); err == nil && n < 0 {
			t.Errorf("parseTimeout(%q) = %d, which is negative", s, n)
		}
	})
}

func TestFormat(t *testing.T) {
	for n, want := range map[int64]string{0: "0 B", 1023: "1023 B", 1024: "1 KiB", 1536: "1.5 KiB", 2 << 30: "2 GiB", 1 << 50: "1024 TiB"} {
		if got := FormatSize(n); got != want {
			t.Errorf("formatSize(%d) = %q, want %q", n, got, want)
		}
	}
	if n, err := ParseSize("--flag", "x", FormatLimit(16<<30)); err != nil || n != 16<<30 {
		t.Errorf("the default of --max-size reads as %d, %v", n, err)
	}
}
