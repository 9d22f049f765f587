package command

import (
	"math"
	"math/big"
	"strings"
	"time"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/terminal"
)

// sizeUnits are factors by lower-case suffix. One letter or a suffix with "i"
// is a power of 1024, as people mean it for memory; KB, MB … are powers of 1000.
var sizeUnits = map[string]int64{
	"": 1, "b": 1,
	"k": 1 << 10, "ki": 1 << 10, "kib": 1 << 10, "kb": 1e3,
	"m": 1 << 20, "mi": 1 << 20, "mib": 1 << 20, "mb": 1e6,
	"g": 1 << 30, "gi": 1 << 30, "gib": 1 << 30, "gb": 1e9,
	"t": 1 << 40, "ti": 1 << 40, "tib": 1 << 40, "tb": 1e12,
}

// ParseSize reads a number of bytes such as 512m, 1.5GiB or 1000000. It is more
// than zero: on the wire zero means "the profile's default", which a caller
// gets by saying nothing. The flag is for the message, the field is the wire's.
func ParseSize(flag, field, s string) (int64, error) {
	bad := func(why string) error {
		return api.Invalid(field, "%s %q %s", flag, terminal.Clip(s), why).
			WithHint("give a size such as 512m, 2GiB or 1000000; K, M, G, T are powers of 1024, KB, MB … of 1000")
	}
	number, unit := splitNumber(s)
	if strings.HasPrefix(s, "-") {
		return 0, bad("is negative")
	}
	value, ok := parseDecimal(number)
	if !ok {
		return 0, bad("is not a size")
	}
	factor, ok := sizeUnits[strings.ToLower(unit)]
	if !ok {
		return 0, bad("has a unit that does not exist")
	}
	value.Mul(value, new(big.Rat).SetInt64(factor))
	whole := new(big.Int).Quo(value.Num(), value.Denom())
	switch {
	case !whole.IsInt64():
		return 0, bad("is larger than any machine")
	case whole.Sign() == 0:
		return 0, bad("is not a whole byte; to get the profile's default leave it out")
	}
	return whole.Int64(), nil
}

// ParseTimeout reads a duration such as 90s, 1h30m or a plain number of
// seconds, in milliseconds rounded up; 0 means unlimited.
func ParseTimeout(flag, field, s string) (int64, error) {
	bad := func(why string) error {
		return api.Invalid(field, "%s %q %s", flag, terminal.Clip(s), why).
			WithHint("give a duration such as 90s, 1h30m or a number of seconds; 0 is unlimited")
	}
	if strings.HasPrefix(s, "-") {
		return 0, bad("is negative")
	}
	if number, unit := splitNumber(s); unit == "" {
		value, ok := parseDecimal(number)
		if !ok {
			return 0, bad("is not a duration")
		}
		value.Mul(value, new(big.Rat).SetInt64(1000))
		ms := new(big.Int).Quo(
			new(big.Int).Add(value.Num(), new(big.Int).Sub(value.Denom(), big.NewInt(1))), value.Denom())
		if !ms.IsInt64() || ms.Int64() > math.MaxInt64/int64(time.Millisecond) {
			return 0, bad("is longer than 292 years")
		}
		return ms.Int64(), nil
	}
	d, err := time.ParseDuration(s)
	if err != nil || d < 0 {
		return 0, bad("is not a duration")
	}
	ms := int64(d / time.Millisecond)
	if d%time.Millisecond != 0 {
		ms++
	}
	return ms, nil
}

// splitNumber cuts s where its leading digits and dots end.
func splitNumber(s string) (number, rest string) {
	end := strings.IndexFunc(s, func(r rune) bool { return (r < '0' || r > '9') && r != '.' })
	if end < 0 {
		return s, ""
	}
	return s[:end], s[end:]
}

// parseDecimal reads digits with at most one dot. The length is bounded because
// an exact number costs memory by its digits.
func parseDecimal(s string) (*big.Rat, bool) {
	if len(s) > 40 || strings.Count(s, ".") > 1 || strings.Trim(s, ".") == "" {
		return nil, false
	}
	return new(big.Rat).SetString(s)
}
