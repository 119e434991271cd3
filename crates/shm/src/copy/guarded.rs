//! A single-instruction copy, and the SIGBUS handler that can end it early.
//!
//! `rep movsb` counts the remaining bytes in a register, and a fault at the instruction leaves the
//! register intact. The handler resumes execution after the instruction, and the copy returns the
//! count. The handler needs no table of regions, no lock and no memory allocation, because the
//! instruction's address is sufficient to identify the copy.

use std::ffi::{c_int, c_void};
use std::io;
use std::sync::OnceLock;

use super::MemoryFault;

use assembly::{galatea_shm_copy, galatea_shm_copy_end, galatea_shm_copy_step};

/// The previous SIGBUS handler. It is a static because a handler doesn't receive any object that
/// could contain it.
static PREVIOUS: OnceLock<libc::sigaction> = OnceLock::new();

/// Installs the handler once per process.
pub(super) fn prepare() -> io::Result<()> {
    if PREVIOUS.get().is_some() {
        return Ok(());
    }
    let previous = exchange_action(&our_action())?;
    // If another thread installed the handler first, the returned action is this handler itself.
    if previous.sa_sigaction != handler_address() {
        let _ = PREVIOUS.set(previous);
    }
    Ok(())
}

/// Like [`super::copy`].
///
/// # Safety
///
/// Same requirements as for [`super::copy`].
#[expect(unsafe_code, reason = "the copy reads and writes through addresses")]
pub(super) unsafe fn copy(
    to: *mut u8,
    from: *const u8,
    byte_size: usize,
) -> Result<(), MemoryFault> {
    // SAFETY: the caller guarantees that both sides are mapped. A missing page raises SIGBUS at the
    // only instruction that accesses memory, and the handler ends that instruction. The direction
    // flag is clear, as the calling convention requires.
    let left = unsafe { galatea_shm_copy(to, from, byte_size) };
    if left == 0 { Ok(()) } else { Err(MemoryFault) }
}

fn handler_address() -> usize {
    let handler: extern "C" fn(c_int, *mut libc::siginfo_t, *mut c_void) = on_fault;
    handler as *const () as usize
}

fn our_action() -> libc::sigaction {
    let mut action = default_action();
    action.sa_sigaction = handler_address();
    // The handler runs on the alternative stack that the standard library provides for its threads,
    // just like the library's own handler.
    action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
    action
}

fn default_action() -> libc::sigaction {
    // SAFETY: all zeros represent the default action, with no flags and no blocked signals.
    #[expect(unsafe_code, reason = "the type has no constructor")]
    let action: libc::sigaction = unsafe { std::mem::zeroed() };
    action
}

/// Sets the SIGBUS action and returns the previous one.
fn exchange_action(action: &libc::sigaction) -> io::Result<libc::sigaction> {
    let mut previous = default_action();
    // SAFETY: both pointers refer to actions. The new handler is safe to run in any thread at any
    // time, as its comments explain.
    #[expect(unsafe_code, reason = "no library has a safe function for it")]
    let result = unsafe { libc::sigaction(libc::SIGBUS, action, &raw mut previous) };
    if result == 0 { Ok(previous) } else { Err(io::Error::last_os_error()) }
}

/// Ends the copy if the fault occurred there; otherwise passes on the signal.
///
/// The handler only writes to the context, reads a static that is set once, and makes system calls,
/// all of which are allowed in signal handlers.
extern "C" fn on_fault(signal: c_int, info: *mut libc::siginfo_t, context: *mut c_void) {
    // A signal from another process has a code of 0 or less.
    // SAFETY: the kernel passes the signal's description.
    #[expect(unsafe_code, reason = "the kernel passes addresses")]
    let is_fault = unsafe { info.as_ref() }.is_some_and(|info| info.si_code > 0);
    if is_fault && end_copy(context) {
        return;
    }
    let Some(previous) = PREVIOUS.get() else { return reset() };
    match previous.sa_sigaction {
        // The fault recurs and then ends the process.
        libc::SIG_DFL | libc::SIG_IGN => reset(),
        // SAFETY: the flags indicate which of the two kinds of functions was installed.
        #[expect(unsafe_code, reason = "the handler is known by its address")]
        handler if previous.sa_flags & libc::SA_SIGINFO != 0 => unsafe {
            let handler: extern "C" fn(c_int, *mut libc::siginfo_t, *mut c_void) =
                std::mem::transmute(handler);
            handler(signal, info, context);
        },
        // SAFETY: as above.
        #[expect(unsafe_code, reason = "the handler is known by its address")]
        handler => unsafe {
            let handler: extern "C" fn(c_int) = std::mem::transmute(handler);
            handler(signal);
        },
    }
}

/// Resumes execution after the copy instruction if the thread is at that instruction.
fn end_copy(context: *mut c_void) -> bool {
    // SAFETY: the kernel passes the thread's context, which nothing else uses while the handler is
    // running.
    #[expect(unsafe_code, reason = "the kernel passes addresses")]
    let Some(context) = (unsafe { context.cast::<libc::ucontext_t>().as_mut() }) else {
        return false;
    };
    let registers = &mut context.uc_mcontext.gregs;
    let index = usize::try_from(libc::REG_RIP).unwrap_or(usize::MAX);
    let Some(instruction) = registers.get_mut(index) else { return false };
    let step = galatea_shm_copy_step as *const () as usize;
    let end = galatea_shm_copy_end as *const () as usize;
    if usize::try_from(*instruction) != Ok(step) {
        return false;
    }
    let Ok(end) = i64::try_from(end) else { return false };
    *instruction = end;
    true
}

/// Restores the default action, which ends the process when the fault recurs.
fn reset() {
    let _ = exchange_action(&default_action());
}

/// The assembly implementation of the copy.
#[expect(unsafe_code, reason = "it is in assembly")]
mod assembly {
    use std::arch::global_asm;

    global_asm!(
        ".pushsection .text.galatea_shm_copy,\"ax\",@progbits",
        ".hidden galatea_shm_copy",
        ".hidden galatea_shm_copy_step",
        ".hidden galatea_shm_copy_end",
        ".globl galatea_shm_copy",
        ".globl galatea_shm_copy_step",
        ".globl galatea_shm_copy_end",
        ".type galatea_shm_copy,@function",
        "galatea_shm_copy:",
        ".cfi_startproc",
        "mov rcx, rdx",
        "galatea_shm_copy_step:",
        "rep movsb",
        "galatea_shm_copy_end:",
        "mov rax, rcx",
        "ret",
        ".cfi_endproc",
        ".size galatea_shm_copy, .-galatea_shm_copy",
        ".popsection",
    );

    unsafe extern "C" {
        /// Copies bytes and returns the number of remaining bytes.
        pub(super) fn galatea_shm_copy(to: *mut u8, from: *const u8, byte_size: usize) -> usize;
        /// The instruction that may fault.
        pub(super) fn galatea_shm_copy_step();
        /// The instruction after it.
        pub(super) fn galatea_shm_copy_end();
    }
}
