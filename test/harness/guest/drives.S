# A boot sector that starts the machine again until it has three drives. Then it says when it can read one of the last
# two, by the name in the drive's first sector, and when it cannot any more.

        .intel_syntax noprefix
        .code16
        .globl _start

        .equ DRIVES, 0x475              # number of hard disks, in the BIOS data area
        .equ SECTOR, 0x7e00
        .equ NAME, 256                  # in a sector
        .equ NAMES, 0x8000              # of the drives that can be read, 256 bytes each
        .equ RESET, 0xcf9

_start:
        cli
        xor ax, ax
        mov ds, ax
        mov es, ax
        mov ss, ax
        mov sp, 0x7c00
        sti
        cld
        cmp byte ptr [DRIVES], 3
        jae begin
        mov cx, 9                       # half a second of the timer
1:      hlt
        loop 1b
        mov dx, RESET
        mov al, 6
        out dx, al
2:      hlt
        jmp 2b

begin:  mov di, NAMES
        mov cx, 256
        rep stosw
watch:  mov dl, 0x81
        mov di, NAMES
        call look
        inc dl
        add di, 256
        call look
        hlt
        jmp watch

look:   push dx
        mov ax, 0x0201                  # read one sector
        mov bx, SECTOR
        mov cx, 1
        xor dh, dh
        int 0x13
        pop dx
        jc lost
        cmp byte ptr [di], 0
        jne done
        push di
        mov si, SECTOR + NAME
        mov cx, 128
        rep movsw
        pop di
        mov si, offset reads
        jmp tell
lost:   cmp byte ptr [di], 0
        je done
        mov si, offset loses
        call tell
        mov byte ptr [di], 0
done:   ret

tell:   call print
        mov si, di
print:  push dx
1:      lodsb
        test al, al
        jz 2f
        mov ah, 0x0e
        mov bx, 7
        int 0x10
        jmp 1b
2:      pop dx
        ret

reads:  .asciz "guest: reads "
loses:  .asciz "guest: loses "

        .org 510
        .word 0xaa55
