package rules

import (
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"

	"github.com/goccy/go-yaml/ast"
)

// rawNumber formats any float, NaN and infinities included.
func rawNumber(v float64) string { return strconv.FormatFloat(v, 'g', -1, 64) }

// FormatNumber formats a limit as in the request, for a report on that field.
func FormatNumber(v float64) string { return strconv.FormatFloat(v, 'f', -1, 64) }

// FormatSize uses binary units for exact multiples, so that the result can be parsed again.
func FormatSize(v float64) string {
	n := int64(v)
	for _, u := range []struct {
		name string
		size int64
	}{{"TiB", 1 << 40}, {"GiB", Gib}, {"MiB", mib}, {"KiB", 1 << 10}} {
		if n >= u.size && n%u.size == 0 {
			return strconv.FormatInt(n/u.size, 10) + u.name
		}
	}
	return strconv.FormatInt(n, 10)
}

func formatMillis(v float64) string { return strconv.FormatInt(int64(v), 10) + " ms" }

// ParseSize parses 1048576, 512KiB, 1.5GiB, 2G (binary, as in Docker) and 2GB (decimal).
func ParseSize(s string) (Size, error) {
	s = strings.TrimSpace(s)
	digits := strings.TrimRight(s, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ ")
	unit := strings.ToLower(strings.TrimSpace(s[len(digits):]))
	scale, ok := map[string]float64{
		"": 1, "b": 1,
		"k": 1 << 10, "m": mib, "g": Gib, "t": 1 << 40,
		"kib": 1 << 10, "mib": mib, "gib": Gib, "tib": 1 << 40,
		"kb": 1e3, "mb": 1e6, "gb": 1e9, "tb": 1e12,
	}[unit]
	n, err := strconv.ParseFloat(digits, 64)
	if !ok || err != nil || math.IsNaN(n) || n < 0 || n*scale > 1<<50 {
		return 0, fmt.Errorf("size %s is not valid: write bytes or a unit, such as 1048576, 512MiB or 2GiB", Quote(s))
	}
	return Size(n * scale), nil
}

// parseDuration parses 90s, 5m, 1h30m and 0.
func parseDuration(s string) (Duration, error) {
	v, err := time.ParseDuration(strings.TrimSpace(s))
	if err != nil || v < 0 || v > MaxTimeoutMS*time.Millisecond {
		return 0, fmt.Errorf("time %s is not valid: write a number with a unit, such as 90s, 5m or 1h30m", Quote(s))
	}
	return Duration(v), nil
}

// UnmarshalYAML reads a scalar.
func (s *Size) UnmarshalYAML(n ast.Node) (err error) {
	*s, err = scalar(n, ParseSize)
	return err
}

// UnmarshalYAML reads a scalar.
func (d *Duration) UnmarshalYAML(n ast.Node) (err error) {
	*d, err = scalar(n, parseDuration)
	return err
}

// scalar parses the text of one value of a file.
func scalar[T any](n ast.Node, parse func(string) (T, error)) (T, error) {
	if _, ok := n.(ast.ScalarNode); !ok {
		return *new(T), errors.New("a list or a mapping stands where one value is expected")
	}
	return parse(n.GetToken().Value)
}
