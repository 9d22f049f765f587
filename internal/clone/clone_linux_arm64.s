#include "textflag.h"

// func clone3(args *Args, size, entry uintptr, child unsafe.Pointer) (pid, errno uintptr)
//
// The child calls entry with child on its own stack and never returns. Entry is Go's
// internal ABI, in which the first argument is in R0: the wrapper for other
// callers reports to the race detector in the name of the parent.
TEXT ·clone3(SB),NOSPLIT|NOFRAME,$0-48
	MOVD	args+0(FP), R0
	MOVD	size+8(FP), R1
	MOVD	child+24(FP), R19 // the system call leaves R19 and R20 alone
	MOVD	entry+16(FP), R20
	MOVD	$435, R8 // clone3
	SVC
	CBZ	R0, child
	CMN	$4095, R0
	BCS	failed
	MOVD	R0, pid+32(FP)
	MOVD	ZR, errno+40(FP)
	RET
failed:
	NEG	R0, R0
	MOVD	$-1, R1
	MOVD	R1, pid+32(FP)
	MOVD	R0, errno+40(FP)
	RET
child:
	MOVD	ZR, R29
	MOVD	ZR, R30
	SUB	$64, RSP
	MOVD	R19, R0
	CALL	(R20)
	BRK

// func clone(flags, stack, entry uintptr, child unsafe.Pointer) (pid, errno uintptr)
//
// As clone3, by the older call.
TEXT ·clone(SB),NOSPLIT|NOFRAME,$0-48
	MOVD	flags+0(FP), R0
	MOVD	stack+8(FP), R1
	MOVD	child+24(FP), R19
	MOVD	entry+16(FP), R20
	MOVD	ZR, R2
	MOVD	ZR, R3
	MOVD	ZR, R4
	MOVD	$220, R8 // clone
	SVC
	CBZ	R0, child
	CMN	$4095, R0
	BCS	failed
	MOVD	R0, pid+32(FP)
	MOVD	ZR, errno+40(FP)
	RET
failed:
	NEG	R0, R0
	MOVD	$-1, R1
	MOVD	R1, pid+32(FP)
	MOVD	R0, errno+40(FP)
	RET
child:
	MOVD	ZR, R29
	MOVD	ZR, R30
	SUB	$64, RSP
	MOVD	R19, R0
	CALL	(R20)
	BRK
