# A boot sector that prints the text in its second half, then that of the next drive's, and stops.

        .intel_syntax noprefix
        .code16
        .globl _start

        .equ TEXT, 256
        .equ NEXT, 0x7e00

_start:
        cli
        xor ax, ax
        mov ds, ax
        mov es, ax
        mov ss, ax
        mov sp, 0x7c00
        sti
        cld
        mov si, offset text
        call print
        inc dl
        mov ax, 0x0201                  # read one sector
        mov bx, NEXT
        mov cx, 1
        xor dh, dh
        int 0x13
        jc stop
        mov si, NEXT + TEXT
        call print
stop:   hlt
        jmp stop

print:
        push dx
1:      lodsb
        test al, al
        jz 2f
        mov ah, 0x0e
        mov bx, 7
        int 0x10
        jmp 1b
2:      pop dx
        ret

        .org TEXT
text:   .byte 0

        .org 510
        .word 0xaa55
