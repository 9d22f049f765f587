package api

// The numbers are those of Linux on every architecture that Cloche supports. The sandbox runs
// Linux, whatever the client runs.
var signalNumbers = map[string]int{
	"HUP": 1, "INT": 2, "QUIT": 3, "ILL": 4, "TRAP": 5, "ABRT": 6, "BUS": 7, "FPE": 8,
	"KILL": 9, "USR1": 10, "SEGV": 11, "USR2": 12, "PIPE": 13, "ALRM": 14, "TERM": 15,
	"STKFLT": 16, "CHLD": 17, "CONT": 18, "STOP": 19, "TSTP": 20, "TTIN": 21, "TTOU": 22,
	"URG": 23, "XCPU": 24, "XFSZ": 25, "VTALRM": 26, "PROF": 27, "WINCH": 28, "IO": 29,
	"PWR": 30, "SYS": 31,
}

// SignalNumber returns the number of a signal named as in Result.Signal, or 0.
func SignalNumber(name string) int { return signalNumbers[name] }

// SignalName returns the name of a signal, such as "KILL" for 9, or "" for a
// number that has none.
func SignalName(n int) string {
	for name, m := range signalNumbers {
		if m == n {
			return name
		}
	}
	return ""
}
