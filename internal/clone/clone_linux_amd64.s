#include "textflag.h"

// func clone3(args *Args, size, entry uintptr, child unsafe.Pointer) (pid, errno uintptr)
//
// The child calls entry with child on its own stack and never returns. Entry is Go's
// internal ABI, in which the first argument is in AX and X15 is zero: the wrapper
// for other callers reports to the race detector in the name of the parent.
TEXT ·clone3(SB),NOSPLIT,$0-48
	MOVQ	args+0(FP), DI
	MOVQ	size+8(FP), SI
	MOVQ	child+24(FP), R12 // the system call leaves R12 and R13 alone
	MOVQ	entry+16(FP), R13
	MOVQ	$435, AX // clone3
	SYSCALL
	TESTQ	AX, AX
	JEQ	child
	CMPQ	AX, $0xfffffffffffff001
	JCC	failed
	MOVQ	AX, pid+32(FP)
	MOVQ	$0, errno+40(FP)
	RET
failed:
	NEGQ	AX
	MOVQ	$-1, pid+32(FP)
	MOVQ	AX, errno+40(FP)
	RET
child:
	XORL	BP, BP
	SUBQ	$64, SP
	XORPS	X15, X15
	MOVQ	R12, AX
	CALL	R13
	INT	$3

// func clone(flags, stack, entry uintptr, child unsafe.Pointer) (pid, errno uintptr)
//
// As clone3, by the older call.
TEXT ·clone(SB),NOSPLIT,$0-48
	MOVQ	flags+0(FP), DI
	MOVQ	stack+8(FP), SI
	MOVQ	child+24(FP), R12
	MOVQ	entry+16(FP), R13
	XORL	DX, DX
	XORL	R10, R10
	XORL	R8, R8
	MOVQ	$56, AX // clone
	SYSCALL
	TESTQ	AX, AX
	JEQ	child
	CMPQ	AX, $0xfffffffffffff001
	JCC	failed
	MOVQ	AX, pid+32(FP)
	MOVQ	$0, errno+40(FP)
	RET
failed:
	NEGQ	AX
	MOVQ	$-1, pid+32(FP)
	MOVQ	AX, errno+40(FP)
	RET
child:
	XORL	BP, BP
	SUBQ	$64, SP
	XORPS	X15, X15
	MOVQ	R12, AX
	CALL	R13
	INT	$3
