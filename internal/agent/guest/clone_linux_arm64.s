#include "textflag.h"

// func cloneLauncher(args, size uintptr, l *launcher) (pid, errno uintptr)
//
// The child runs launcherMain(l) on its own stack and never returns.
TEXT ·cloneLauncher(SB),NOSPLIT|NOFRAME,$0-40
	MOVD	args+0(FP), R0
	MOVD	size+8(FP), R1
	MOVD	l+16(FP), R19 // the system call leaves R19 alone
	MOVD	$435, R8 // clone3
	SVC
	CBZ	R0, child
	CMN	$4095, R0
	BCS	failed
	MOVD	R0, pid+24(FP)
	MOVD	ZR, errno+32(FP)
	RET
failed:
	NEG	R0, R0
	MOVD	$-1, R1
	MOVD	R1, pid+24(FP)
	MOVD	R0, errno+32(FP)
	RET
child:
	MOVD	ZR, R29
	MOVD	ZR, R30
	SUB	$32, RSP
	MOVD	R19, 8(RSP)
	BL	·launcherMain(SB)
	BRK
