//! The single-instruction copy, and the SIGBUS handler that ends it early.
//!
//! `rep movsb` counts the remaining bytes in a register. A fault at the instruction leaves the
//! register intact. The handler continues after the instruction, and the copy returns the count.
//! The handler needs no table of regions, no lock and no memory: the address of the instruction
//! tells everything.

use std::ffi::{c_int, c_void};
use std::io;
use std::sync::OnceLock;

use super::MemoryFault;

use assembly::{galatea_shm_copy, galatea_shm_copy_end, galatea_shm_copy_step};

/// The previous SIGBUS handler. A static, because a handler receives no object that could hold it.
static PREVIOUS: OnceLock<libc::sigaction> = OnceLock::new();

/// Installs the handler, once per process.
pub(super) fn prepare() -> io::Result<()> {
    if PREVIOUS.get().is_some() {
        return Ok(());
    }
    let previous = exchange_action(&our_action())?;
    // Another thread may have been faster; the returned action is then the handler itself.
    if previous.sa_sigaction != handler_address() {
        let _ = PREVIOUS.set(previous);
    }
    Ok(())
}

/// As for [`super::copy`].
///
/// # Safety
///
/// As for that function.
#[expect(unsafe_code, reason = "the copy reads and writes through addresses")]
pub(super) unsafe fn copy(
    to: *mut u8,
    from: *const u8,
    byte_size: usize,
) -> Result<(), MemoryFault> {
    // SAFETY: the caller promises that both sides are mapped. A page that is missing raises
    // SIGBUS at the one instruction that touches memory, which the handler ends. The direction
    // flag is clear, as the calling convention demands.
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
    // Runs on the alternative stack that the standard library gives its threads, like the library's
    // own handler.
    action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
    action
}

fn default_action() -> libc::sigaction {
    // SAFETY: all zeros is the default action, with no flags and no signal blocked.
    #[expect(unsafe_code, reason = "the type has no constructor")]
    let action: libc::sigaction = unsafe { std::mem::zeroed() };
    action
}

/// Sets the action for SIGBUS and returns the previous one.
fn exchange_action(action: &libc::sigaction) -> io::Result<libc::sigaction> {
    let mut previous = default_action();
    // SAFETY: both point to actions. The handler that is set is safe in any thread at any
    // time: see there.
    #[expect(unsafe_code, reason = "no library has a safe function for it")]
    let result = unsafe { libc::sigaction(libc::SIGBUS, action, &raw mut previous) };
    if result == 0 { Ok(previous) } else { Err(io::Error::last_os_error()) }
}

/// Ends the copy if the fault occurred there; passes the signal on otherwise.
///
/// The handler only writes to the context, reads a static that is set once, and makes system calls,
/// all of which are allowed in a signal handler.
extern "C" fn on_fault(signal: c_int, info: *mut libc::siginfo_t, context: *mut c_void) {
    // A signal of another process has a code of 0 or less.
    // SAFETY: the kernel passes the signal's description.
    #[expect(unsafe_code, reason = "the kernel passes addresses")]
    let is_fault = unsafe { info.as_ref() }.is_some_and(|info| info.si_code > 0);
    if is_fault && end_copy(context) {
        return;
    }
    let Some(previous) = PREVIOUS.get() else { return reset() };
    match previous.sa_sigaction {
        // The fault recurs and ends the process.
        libc::SIG_DFL | libc::SIG_IGN => reset(),
        // SAFETY: the flags say which of the two kinds of functions was installed.
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

/// Continues after the copy's instruction, if the thread is at that instruction.
fn end_copy(context: *mut c_void) -> bool {
    // SAFETY: the kernel passes the thread's context, which nothing else uses while the handler
    // runs.
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

/// The copy in assembly.
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
        /// Copies, and returns the number of remaining bytes.
        pub(super) fn galatea_shm_copy(to: *mut u8, from: *const u8, byte_size: usize) -> usize;
        /// The instruction that may fault.
        pub(super) fn galatea_shm_copy_step();
        /// The next instruction.
        pub(super) fn galatea_shm_copy_end();
    }
}
