//! Everything that depends on the x86-64 architecture.
//!
//! Another architecture is one more file with these names: the register file, system call numbers,
//! which interrupted calls return EINTR, and the *springboard*: a few bytes of code that a borrowed
//! thread runs.
//!
//! # The springboard
//!
//! A borrowed thread executes one `clone`, nothing else.  The springboard is written so that the
//! thread finds its own way home when we die at any point: after the call it reloads, from
//! immediates, every register that a system call may change, and jumps back to where it was, to an
//! exact re-execution of the call that we interrupted.  It uses no stack and leaves the flags
//! alone. The new thread, should nobody be there to guide it, ends itself.
//!
//! ```text
//! entry:   syscall                    ; clone, arguments set by us
//!          xchg rax, rcx              ; rcx is lost to the call anyway
//!          jrcxz child                ; does not touch the flags
//!          mov  rax..r11, imm64       ; nine registers
//!          jmp  [rip]                 ; home
//! worker:  syscall                    ; the new thread's calls are made from here
//! child:   xor edi, edi
//!          mov eax, 60                ; exit: of this thread only
//!          syscall
//!          ud2
//! ```

use std::time::Duration;

/// Registers of a thread, as PTRACE_GETREGS gives them.
#[derive(Clone, Copy)]
pub struct Registers(pub libc::user_regs_struct);

/// ELF machine number of what we can attach to.
pub const ELF_MACHINE: u16 = 62;
/// End of the part of the address space that a process can map.
pub const ADDRESS_END: u64 = 0x7FFF_FFFF_F000;

/// System calls issued in the target.
pub mod call {
    /// mmap(2)
    pub const MMAP: u64 = 9;
    /// munmap(2)
    pub const MUNMAP: u64 = 11;
    /// mremap
    pub const MREMAP: u64 = 25;
    /// ioctl(2)
    pub const IOCTL: u64 = 16;
    /// madvise(2)
    pub const MADVISE: u64 = 28;
    /// recvmsg(2)
    pub const RECVMSG: u64 = 47;
    /// socketpair(2)
    pub const SOCKETPAIR: u64 = 53;
    /// clone(2)
    pub const CLONE: u64 = 56;
    /// exit(2): ends one thread
    pub const EXIT: u64 = 60;
    /// close_range(2)
    pub const CLOSE_RANGE: u64 = 436;
}

/// Calls that return EINTR when a tracer stops them although no handler ran: signal(7), and
/// measured for epoll_wait, recv with a timeout and sigtimedwait.
const INTERRUPTIBLE: [u64; 14] = [
    45,  // recvfrom (with SO_RCVTIMEO)
    47,  // recvmsg
    65,  // semop
    128, // rt_sigtimedwait
    208, // io_getevents
    220, // semtimedop
    232, // epoll_wait
    281, // epoll_pwait
    288, // accept4 (with SO_RCVTIMEO)
    299, // recvmmsg
    333, // io_pgetevents
    426, // io_uring_enter
    441, // epoll_pwait2
    43,  // accept
];

/// A system call: its number and its arguments.
pub type Call = (u64, [u64; 6]);

/// How long a call waits at most.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Timeout {
    /// For ever, or the call does not say.
    Unknown,
    /// So long.
    Of(Duration),
    /// As long as the two words at this address say: seconds and nanoseconds.
    At(u64),
}

/// How long an interruptible call waits at most.  What a socket option says (recv, accept) and what
/// `io_uring_enter` waits for is not known here.
#[must_use]
pub fn timeout((number, arguments): Call) -> Timeout {
    let at = |address: u64| if address == 0 { Timeout::Unknown } else { Timeout::At(address) };
    match number {
        232 | 281 => u32::try_from(arguments[3] as i32)
            .map_or(Timeout::Unknown, |millis| Timeout::Of(Duration::from_millis(millis.into()))),
        128 => at(arguments[2]),
        220 | 441 => at(arguments[3]),
        208 | 333 => at(arguments[4]),
        _ => Timeout::Unknown,
    }
}

/// What a call returns when its time is over.
fn timed_out(number: u64) -> i64 {
    if matches!(number, 128 | 220) { -i64::from(libc::EAGAIN) } else { 0 }
}

const RESTART_SYS: i64 = -512;
const RESTART_NOINTR: i64 = -513;
const RESTART_NOHAND: i64 = -514;
const RESTART_BLOCK: i64 = -516;
const RESTART_SYSCALL_NUMBER: u64 = 219;
const SYSCALL_LENGTH: u64 = 2;

/// Whether a thread blocked in this call would see EINTR if it were borrowed without care.
#[must_use]
pub fn is_interruptible(number: u64) -> bool {
    INTERRUPTIBLE.contains(&number)
}

/// Calls that hand over a part at a time and, stopped between two parts, return what they have
/// done: a blocking write(2) into a full pipe would be shorter than any that a program without
/// signal handlers ever sees.
const DONE_BY_PARTS: [u64; 13] = [
    1,   // write
    18,  // pwrite64
    20,  // writev
    40,  // sendfile
    44,  // sendto
    46,  // sendmsg
    275, // splice
    278, // vmsplice
    296, // pwritev
    299, // recvmmsg
    307, // sendmmsg
    326, // copy_file_range
    328, // pwritev2
];

/// recv(2) until all of it is there.
const MSG_WAITALL: u64 = 0x100;

/// Whether a thread asleep in this call would come back with a part if it were stopped.
#[must_use]
pub fn is_done_by_parts(number: u64, arguments: [u64; 6]) -> bool {
    match number {
        45 => arguments[3] & MSG_WAITALL != 0,
        47 => arguments[2] & MSG_WAITALL != 0,
        // io_getevents, io_pgetevents: until there are so many.
        208 | 333 => arguments[1] > 1,
        _ => DONE_BY_PARTS.contains(&number),
    }
}

/// Whether a call's result means, inside the kernel only, that it will be made again.
#[must_use]
pub fn is_restart(result: i64) -> bool {
    matches!(result, RESTART_SYS | RESTART_NOINTR | RESTART_NOHAND | RESTART_BLOCK)
}

/// Whether a call may drop the contents of memory: madvise, process_madvise, and io_uring_enter,
/// which can run either.
#[must_use]
pub fn empties_memory(number: i64) -> bool {
    matches!(number, 28 | 440 | 426)
}

/// Code bytes of the springboard and where its worker part begins.
#[derive(Debug)]
pub struct Springboard {
    /// Position-independent code.
    pub code: Vec<u8>,
    /// Offset of `worker`.
    pub worker: u64,
}

/// How a springboard begins.
pub const SPRINGBOARD_HEAD: [u8; 5] = [0x0F, 0x05, 0x48, 0x91, 0xE3];
/// Upper bound of the code's length.
pub const SPRINGBOARD_BYTES: usize = 128;

impl Registers {
    /// The call that the stop made return EINTR, if it did.
    #[must_use]
    pub fn interrupted_call(&self) -> Option<Call> {
        let raw = &self.0;
        // The kernel takes the lower half for the number; the upper one may hold our mark.
        let number = raw.orig_rax & u64::from(u32::MAX);
        let stopped = raw.rax as i64 == -i64::from(libc::EINTR) && is_interruptible(number);
        stopped.then_some((number, [raw.rdi, raw.rsi, raw.rdx, raw.r10, raw.r8, raw.r9]))
    }

    /// The mark with which the thread's call was made again.
    #[must_use]
    pub fn mark(&self) -> Option<u32> {
        Some((self.0.orig_rax >> 32) as u32).filter(|mark| *mark != 0)
    }

    /// Set the thread to make its interrupted call again, with a mark below 2^31.  The kernel does
    /// it when it lets the thread go, unless a signal with a handler has come: then the call
    /// returns EINTR after all, as it would have without us.  The program may wait for nothing
    /// else (`exact/handled-signals`).
    pub fn call_again(&mut self, mark: u32) {
        self.0.rax = RESTART_NOHAND as u64;
        self.0.orig_rax = u64::from(mark) << 32 | self.0.orig_rax & u64::from(u32::MAX);
    }

    /// Let the thread's interrupted call return as if its time were over.
    pub fn end_call(&mut self) {
        self.0.rax = timed_out(self.0.orig_rax & u64::from(u32::MAX)) as u64;
        self.0.orig_rax = u64::MAX;
    }

    /// Registers with which `self`'s interrupted call goes on when the *thread itself* reloads
    /// them, without the kernel's restart logic.
    fn restarted(self) -> libc::user_regs_struct {
        let mut registers = self.0;
        if registers.orig_rax as i64 >= 0 {
            match registers.rax as i64 {
                RESTART_SYS | RESTART_NOINTR | RESTART_NOHAND => {
                    registers.rip -= SYSCALL_LENGTH;
                    registers.rax = registers.orig_rax;
                }
                RESTART_BLOCK => {
                    registers.rip -= SYSCALL_LENGTH;
                    registers.rax = RESTART_SYSCALL_NUMBER;
                }
                _ => {}
            }
        }
        registers
    }

    /// Build the springboard that brings a thread with these registers home.
    #[must_use]
    pub fn springboard(self) -> Springboard {
        let home = self.restarted();
        let mut code = SPRINGBOARD_HEAD.to_vec();
        code.push(0);
        let reload: [([u8; 2], u64); 9] = [
            ([0x48, 0xB8], home.rax),
            ([0x48, 0xB9], home.rcx),
            ([0x48, 0xBA], home.rdx),
            ([0x48, 0xBE], home.rsi),
            ([0x48, 0xBF], home.rdi),
            ([0x49, 0xB8], home.r8),
            ([0x49, 0xB9], home.r9),
            ([0x49, 0xBA], home.r10),
            ([0x49, 0xBB], home.r11),
        ];
        for (opcode, value) in reload {
            code.extend_from_slice(&opcode);
            code.extend_from_slice(&value.to_le_bytes());
        }
        code.extend_from_slice(&[0xFF, 0x25, 0, 0, 0, 0]);
        code.extend_from_slice(&home.rip.to_le_bytes());
        let worker = code.len() as u64;
        code.extend_from_slice(&[0x0F, 0x05]);
        // The displacement of jrcxz counts from the byte after it.
        code[5] = (code.len() - 6) as u8;
        code.extend_from_slice(&[0x31, 0xFF, 0xB8, 60, 0, 0, 0, 0x0F, 0x05, 0x0F, 0x0B]);
        Springboard { code, worker }
    }

    /// The same thread, about to execute a system call instruction at `address`.
    #[must_use]
    pub fn calling(self, address: u64, number: u64, arguments: [u64; 6]) -> Self {
        let mut registers = self.0;
        registers.rip = address;
        registers.rax = number;
        registers.orig_rax = u64::MAX;
        registers.rdi = arguments[0];
        registers.rsi = arguments[1];
        registers.rdx = arguments[2];
        registers.r10 = arguments[3];
        registers.r8 = arguments[4];
        registers.r9 = arguments[5];
        Self(registers)
    }

    /// The thread's stack pointer.
    #[must_use]
    pub fn stack_pointer(&self) -> u64 {
        self.0.rsp
    }

    /// The thread's thread-local storage.
    #[must_use]
    pub fn thread_pointer(&self) -> u64 {
        self.0.fs_base
    }

    /// The system call the thread is about to make, at a call-entry stop.
    #[must_use]
    pub fn call_number(&self) -> u64 {
        self.0.orig_rax
    }

    /// The result of a system call, at a call-exit stop.
    #[must_use]
    pub fn result(&self) -> i64 {
        self.0.rax as i64
    }
}

#[cfg(test)]
impl Registers {
    /// Of a thread whose call the stop made return EINTR.
    pub fn interrupted(first: u64, arguments: [u64; 6]) -> Self {
        // SAFETY: all-zero is a valid value of this structure of integers.
        let raw: libc::user_regs_struct = unsafe { std::mem::zeroed() };
        let mut registers = Self(raw).calling(0x1000, 0, arguments);
        registers.0.orig_rax = first;
        registers.0.rax = -i64::from(libc::EINTR) as u64;
        registers
    }

    /// What the first register holds when the thread goes on: a number to call, or a result.
    pub fn call_made(&self) -> u64 {
        self.restarted().rax
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn registers() -> Registers {
        // SAFETY: all-zero is a valid value of this structure of integers.
        let mut raw: libc::user_regs_struct = unsafe { std::mem::zeroed() };
        raw.rip = 0x1000;
        raw.orig_rax = u64::MAX;
        Registers(raw)
    }

    #[test]
    fn the_springboard_fits_its_room() {
        assert!(registers().springboard().code.len() <= SPRINGBOARD_BYTES);
    }

    #[test]
    fn a_call_that_hands_over_parts_is_known_by_its_number_or_flags() {
        let with = |place: usize, value: u64| {
            let mut arguments = [0; 6];
            arguments[place] = value;
            arguments
        };
        assert!(is_done_by_parts(1, [0; 6]) && is_done_by_parts(46, [0; 6]));
        assert!(!is_done_by_parts(0, [0; 6]) && !is_done_by_parts(232, with(1, 64)));
        assert!(is_done_by_parts(45, with(3, MSG_WAITALL | 2)) && !is_done_by_parts(45, [0; 6]));
        assert!(is_done_by_parts(47, with(2, MSG_WAITALL)) && !is_done_by_parts(47, with(3, !0)));
        assert!(is_done_by_parts(208, with(1, 2)) && !is_done_by_parts(208, with(1, 1)));
    }

    #[test]
    fn a_restartable_call_is_made_again() {
        let mut thread = registers();
        thread.0.orig_rax = 0;
        thread.0.rax = RESTART_SYS as u64;
        assert_eq!((0x0FFE, 0), (thread.restarted().rip, thread.restarted().rax));
        thread.0.orig_rax = 35;
        thread.0.rax = RESTART_BLOCK as u64;
        assert_eq!(RESTART_SYSCALL_NUMBER, thread.restarted().rax);
    }

    #[test]
    fn epoll_wait_never_sees_our_interruption() {
        let mut thread = Registers::interrupted(232, [0; 6]);
        let rip = thread.0.rip;
        thread.call_again(7);
        assert_eq!(Some(7), thread.mark());
        assert!(is_restart(thread.result()));
        assert_eq!((rip - 2, 7 << 32 | 232), (thread.restarted().rip, thread.call_made()));
    }

    #[test]
    fn a_timeout_is_where_its_call_has_it() {
        let arguments = [1, 2, 3, 4, 5, 6];
        assert_eq!(Timeout::Of(Duration::from_millis(4)), timeout((232, arguments)));
        assert_eq!(Timeout::At(3), timeout((128, arguments)));
        assert_eq!(Timeout::At(5), timeout((208, arguments)));
        assert_eq!(Timeout::Unknown, timeout((45, arguments)));
        for endless in [u64::MAX, u64::from(u32::MAX)] {
            assert_eq!(Timeout::Unknown, timeout((281, [1, 2, 3, endless, 5, 6])));
        }
        assert_eq!(Timeout::Unknown, timeout((441, [0; 6])));
    }

    #[test]
    fn an_interruption_of_its_own_is_left_alone() {
        let mut thread = registers();
        thread.0.orig_rax = 0;
        thread.0.rax = -i64::from(libc::EINTR) as u64;
        assert_eq!(None, thread.interrupted_call());
    }
}
