# A boot loader for iPXE's ipxe.lkrn and an initrd that holds its script, on a raw disk (Linux boot protocol,
# Documentation/arch/x86/boot.rst). Before that it can install a small resident handler, so that a guest which
# knows nothing of ACPI obeys the power button: at each timer tick it looks at the power button's status bit
# and, once that is set, enters the soft-off state. To a second disk, if there is one and it is none to boot from, it
# writes a mark, which it reads back and shows.
#
# The disk: this loader in the first 2 KiB, then kernel and initrd where the block at `layout` says.

        .intel_syntax noprefix
        .code16
        .globl _start

        .equ PM1_STATUS, 0x600          # SeaBIOS's ACPI power management block
        .equ PM1_ENABLE, 0x602
        .equ PM1_CONTROL, 0x604
        .equ POWER_BUTTON, 0x0100
        .equ SOFT_OFF, 0x2000           # SLP_EN with QEMU's S5 sleep type
        .equ SETUP_SEGMENT, 0x9000
        .equ KERNEL_ADDRESS, 0x100000
        .equ INITRD_ADDRESS, 0xc00000
        .equ CHUNK_SECTORS, 64
        .equ CHUNK_SEGMENT, 0x1000
        .equ SECOND_DRIVE, 0x81

_start:
        cli
        xor ax, ax
        mov ds, ax
        mov es, ax
        mov ss, ax
        mov sp, 0x7c00
        sti
        cld
        mov [drive], dl
        mov word ptr [packet_count], 3
        mov dword ptr [packet_lba], 1
        mov word ptr [packet_offset], 0x7e00
        mov word ptr [packet_segment], 0
        call read
        jmp main

# Reads what the packet says; stops with a message when the disk cannot be read.
read:
        mov si, offset packet
        mov dl, [drive]
        mov ah, 0x42
        int 0x13
        jc failed
        ret

failed:
        mov si, offset failed_text
        call print
1:      hlt
        jmp 1b

print:
        lodsb
        test al, al
        jz 1f
        mov ah, 0x0e
        mov bx, 7
        int 0x10
        jmp print
1:      ret

        .balign 4
packet: .byte 16, 0
packet_count: .word 0
packet_offset: .word 0
packet_segment: .word 0
packet_lba: .long 0, 0
drive:  .byte 0
failed_text: .asciz "boot: the disk cannot be read\r\n"

        .org 510
        .word 0xaa55

# Filled in when the disk is made.
layout:
setup_sectors: .word 0
kernel_lba: .long 0
kernel_sectors: .long 0
initrd_lba: .long 0
initrd_bytes: .long 0
obeys_acpi: .word 0

main:
        mov si, offset hello_text
        call print
        call use_second_disk
        cmp word ptr [obeys_acpi], 0
        je 1f
        call install_handler
1:
        # Real-mode part.
        mov ax, [setup_sectors]
        mov [packet_count], ax
        mov word ptr [packet_offset], 0
        mov word ptr [packet_segment], SETUP_SEGMENT
        mov eax, [kernel_lba]
        mov [packet_lba], eax
        call read
        # Protected-mode part.
        movzx eax, word ptr [setup_sectors]
        mov ecx, [kernel_sectors]
        sub ecx, eax
        add eax, [kernel_lba]
        mov edi, KERNEL_ADDRESS
        call load_high
        # Initrd.
        mov eax, [initrd_lba]
        mov ecx, [initrd_bytes]
        add ecx, 511
        shr ecx, 9
        mov edi, INITRD_ADDRESS
        call load_high

        mov ax, SETUP_SEGMENT
        mov es, ax
        mov byte ptr es:[0x210], 0xff           # type_of_loader: unregistered
        or byte ptr es:[0x211], 0x80            # loadflags: CAN_USE_HEAP
        mov dword ptr es:[0x218], INITRD_ADDRESS
        mov eax, [initrd_bytes]
        mov es:[0x21c], eax
        mov word ptr es:[0x224], 0xde00         # heap_end_ptr
        mov dword ptr es:[0x228], 0             # cmd_line_ptr
        cli
        mov ax, SETUP_SEGMENT
        mov ds, ax
        mov fs, ax
        mov gs, ax
        mov ss, ax
        mov sp, 0xe000
        ljmp SETUP_SEGMENT + 0x20, 0

# Reads the first sector of the second disk, writes it with the mark and shows the mark as it is read again.
use_second_disk:
        mov word ptr [packet_count], 1
        mov word ptr [packet_offset], 0
        mov word ptr [packet_segment], CHUNK_SEGMENT
        mov dword ptr [packet_lba], 0
        call read_second
        jc 1f
        mov ax, CHUNK_SEGMENT
        mov es, ax
        cmp word ptr es:[510], 0xaa55
        je 1f
        xor di, di
        mov si, offset mark_text
        mov cx, MARK_BYTES
        rep movsb
        mov si, offset packet
        mov dl, SECOND_DRIVE
        mov ax, 0x4300
        int 0x13
        jc 1f
        mov word ptr [packet_offset], 512
        call read_second
        jc 1f
        mov si, offset second_text
        call print
        mov ax, CHUNK_SEGMENT
        mov ds, ax
        mov si, 512
        call print
        xor ax, ax
        mov ds, ax
        mov si, offset end_text
        call print
1:      xor ax, ax
        mov es, ax
        ret

read_second:
        mov si, offset packet
        mov dl, SECOND_DRIVE
        mov ah, 0x42
        int 0x13
        ret

# Reads ECX sectors from EAX to the physical address EDI, through a buffer in low memory.
load_high:
        test ecx, ecx
        jz 2f
        mov ebx, CHUNK_SECTORS
        cmp ecx, ebx
        jae 1f
        mov ebx, ecx
1:      pushad
        mov [packet_count], bx
        mov word ptr [packet_offset], 0
        mov word ptr [packet_segment], CHUNK_SEGMENT
        mov [packet_lba], eax
        mov [move_target + 2], di               # base, bits 0-15
        mov eax, edi
        shr eax, 16
        mov [move_target + 4], al               # bits 16-23
        call read
        mov cx, CHUNK_SECTORS * 256             # words
        mov si, offset move_table
        mov ah, 0x87
        int 0x15
        jc failed
        popad
        add eax, ebx
        sub ecx, ebx
        shl ebx, 9
        add edi, ebx
        jmp load_high
2:      ret

handler:
        push ax
        push dx
        mov dx, PM1_STATUS
        in ax, dx
        test ax, POWER_BUTTON
        jz 1f
        mov dx, PM1_CONTROL
        mov ax, SOFT_OFF
        out dx, ax
1:      pop dx
        pop ax
        .byte 0xea                              # jmp far
chained: .long 0
handler_end:
        .equ HANDLER_BYTES, handler_end - handler

# Puts the handler into the last KiB of base memory, which is taken from everybody else.
install_handler:
        push es
        dec word ptr [0x413]
        mov ax, [0x413]
        shl ax, 6
        mov es, ax
        mov eax, [0x1c * 4]
        mov [chained], eax
        mov si, offset handler
        xor di, di
        mov cx, HANDLER_BYTES
        rep movsb
        cli
        mov word ptr [0x1c * 4], 0
        mov [0x1c * 4 + 2], es
        sti
        pop es
        mov dx, PM1_ENABLE
        in ax, dx
        or ax, POWER_BUTTON
        out dx, ax
        ret

second_text: .asciz "boot: second disk: "
mark_text: .asciz "written by the guest"
        .equ MARK_BYTES, . - mark_text
end_text: .asciz "\r\n"
hello_text: .asciz "boot: loading from the container disk\r\n"

        .balign 8
move_table:
        .quad 0, 0
move_source: .word 0xffff, 0, 0x9301, 0         # 0x010000
move_target: .word 0xffff, 0, 0x9300, 0
        .quad 0, 0

        .org 2048
