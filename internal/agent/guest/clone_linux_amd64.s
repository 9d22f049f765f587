#include "textflag.h"

// func cloneLauncher(args, size uintptr, l *launcher) (pid, errno uintptr)
//
// The child runs launcherMain(l) on its own stack and never returns.
TEXT ·cloneLauncher(SB),NOSPLIT,$0-40
	MOVQ	args+0(FP), DI
	MOVQ	size+8(FP), SI
	MOVQ	l+16(FP), R12 // the system call leaves R12 alone
	MOVQ	$435, AX // clone3
	SYSCALL
	TESTQ	AX, AX
	JEQ	child
	CMPQ	AX, $0xfffffffffffff001
	JCC	failed
	MOVQ	AX, pid+24(FP)
	MOVQ	$0, errno+32(FP)
	RET
failed:
	NEGQ	AX
	MOVQ	$-1, pid+24(FP)
	MOVQ	AX, errno+32(FP)
	RET
child:
	XORL	BP, BP
	SUBQ	$32, SP
	MOVQ	R12, 0(SP)
	CALL	·launcherMain(SB)
	INT	$3
