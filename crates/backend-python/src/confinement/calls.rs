//! System calls that the sandbox denies.
//!
//! This is a denylist rather than an allowlist, because models may use any library. In the sandbox,
//! calls that are newer than the list appear not to exist.

use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter,
    SeccompRule, sock_filter,
};

use libc::{
    SYS_accept, SYS_accept4, SYS_acct, SYS_add_key, SYS_adjtimex, SYS_bind, SYS_bpf, SYS_chroot,
    SYS_clock_adjtime, SYS_clock_settime, SYS_connect, SYS_delete_module, SYS_fanotify_init,
    SYS_fchmod, SYS_fchmodat, SYS_fchown, SYS_fchownat, SYS_finit_module, SYS_fremovexattr,
    SYS_fsconfig, SYS_fsetxattr, SYS_fsmount, SYS_fsopen, SYS_fspick, SYS_init_module,
    SYS_io_uring_enter, SYS_io_uring_register, SYS_io_uring_setup, SYS_ioprio_set,
    SYS_kexec_file_load, SYS_kexec_load, SYS_keyctl, SYS_listen, SYS_lremovexattr, SYS_lsetxattr,
    SYS_mount, SYS_mount_setattr, SYS_move_mount, SYS_mq_open, SYS_mq_unlink, SYS_msgctl,
    SYS_msgget, SYS_msgrcv, SYS_msgsnd, SYS_nfsservctl, SYS_open_by_handle_at, SYS_open_tree,
    SYS_perf_event_open, SYS_pidfd_getfd, SYS_pivot_root, SYS_process_vm_readv,
    SYS_process_vm_writev, SYS_ptrace, SYS_quotactl, SYS_quotactl_fd, SYS_reboot, SYS_removexattr,
    SYS_request_key, SYS_sched_setaffinity, SYS_sched_setattr, SYS_sched_setparam,
    SYS_sched_setscheduler, SYS_semctl, SYS_semget, SYS_semop, SYS_semtimedop, SYS_setdomainname,
    SYS_sethostname, SYS_setns, SYS_setrlimit, SYS_settimeofday, SYS_setxattr, SYS_shmat,
    SYS_shmctl, SYS_shmget, SYS_socket, SYS_swapoff, SYS_swapon, SYS_syslog, SYS_umount2,
    SYS_unshare, SYS_userfaultfd, SYS_utimensat, SYS_vhangup,
};

/// The newest call on the list: `removexattrat` from Linux 6.13. Newer calls have the same number
/// on all architectures.
const NEWEST: u32 = 466;
/// Calls that the `libc` crate doesn't define on some architectures.
const FCHMODAT2: i64 = 452;
const SETXATTRAT: i64 = 463;
const REMOVEXATTRAT: i64 = 466;

/// Calls that create connections. Socket pairs remain available because asynchronous code needs
/// them.
const NETWORK: &[i64] = &[SYS_socket, SYS_connect, SYS_bind, SYS_listen, SYS_accept, SYS_accept4];

/// Calls that affect other processes or this process's limits.
const PROCESSES: &[i64] = &[
    SYS_ptrace,
    SYS_process_vm_readv,
    SYS_process_vm_writev,
    SYS_pidfd_getfd,
    SYS_sched_setaffinity,
    SYS_sched_setscheduler,
    SYS_sched_setparam,
    SYS_sched_setattr,
    SYS_ioprio_set,
    SYS_setrlimit,
];

/// Calls for objects outside the file system that all of a user's processes share.
const SHARED: &[i64] = &[
    SYS_shmget,
    SYS_shmat,
    SYS_shmctl,
    SYS_msgget,
    SYS_msgsnd,
    SYS_msgrcv,
    SYS_msgctl,
    SYS_semget,
    SYS_semop,
    SYS_semtimedop,
    SYS_semctl,
    SYS_mq_open,
    SYS_mq_unlink,
    SYS_keyctl,
    SYS_add_key,
    SYS_request_key,
];

/// Calls that change file attributes, which Landlock does not control.
const ATTRIBUTES: &[i64] = &[
    SYS_fchmod,
    SYS_fchmodat,
    FCHMODAT2,
    SYS_fchown,
    SYS_fchownat,
    SYS_setxattr,
    SYS_lsetxattr,
    SYS_fsetxattr,
    SETXATTRAT,
    SYS_removexattr,
    SYS_lremovexattr,
    SYS_fremovexattr,
    REMOVEXATTRAT,
    SYS_utimensat,
];

/// Calls that affect the system itself, and parts of the kernel that models don't need.
const SYSTEM: &[i64] = &[
    SYS_mount,
    SYS_umount2,
    SYS_pivot_root,
    SYS_chroot,
    SYS_fsopen,
    SYS_fspick,
    SYS_fsconfig,
    SYS_fsmount,
    SYS_move_mount,
    SYS_open_tree,
    SYS_mount_setattr,
    SYS_unshare,
    SYS_setns,
    SYS_bpf,
    SYS_perf_event_open,
    SYS_userfaultfd,
    SYS_io_uring_setup,
    SYS_io_uring_enter,
    SYS_io_uring_register,
    SYS_open_by_handle_at,
    SYS_fanotify_init,
    SYS_init_module,
    SYS_finit_module,
    SYS_delete_module,
    SYS_kexec_load,
    SYS_kexec_file_load,
    SYS_reboot,
    SYS_swapon,
    SYS_swapoff,
    SYS_acct,
    SYS_quotactl,
    SYS_quotactl_fd,
    SYS_nfsservctl,
    SYS_syslog,
    SYS_vhangup,
    SYS_sethostname,
    SYS_setdomainname,
    SYS_settimeofday,
    SYS_clock_settime,
    SYS_clock_adjtime,
    SYS_adjtimex,
];

/// Calls that newer architectures don't have.
#[cfg(target_arch = "x86_64")]
const OLD: &[i64] = &[
    libc::SYS_chmod,
    libc::SYS_chown,
    libc::SYS_lchown,
    libc::SYS_utime,
    libc::SYS_utimes,
    libc::SYS_futimesat,
    libc::SYS_iopl,
    libc::SYS_ioperm,
    libc::SYS_modify_ldt,
    libc::SYS_uselib,
];
#[cfg(not(target_arch = "x86_64"))]
const OLD: &[i64] = &[];

/// The flags that make `clone` create namespaces.
const NAMESPACES: [i32; 7] = [
    libc::CLONE_NEWUSER,
    libc::CLONE_NEWNS,
    libc::CLONE_NEWNET,
    libc::CLONE_NEWPID,
    libc::CLONE_NEWIPC,
    libc::CLONE_NEWUTS,
    libc::CLONE_NEWCGROUP,
];

/// File-system `ioctl` requests by type letter, each with the allowed requests. Others could change
/// files that were opened read-only. The allowed requests read attributes, or share contents with
/// files that were opened for writing.
const FILE_SYSTEM_REQUESTS: [(u64, &[u64]); 3] = [
    (0x66, &[0x8008_6601]),
    (0x58, &[0x801c_581f]),
    (0x94, &[0x4004_9409, 0x4020_940d, 0xc018_9436]),
];

/// Calls that create files, with the argument positions of their flags (if any) and their mode.
const MAKERS: &[(i64, Option<u8>, u8)] = &[
    (libc::SYS_openat, Some(2), 3),
    (libc::SYS_mknodat, None, 2),
    #[cfg(target_arch = "x86_64")]
    (libc::SYS_open, Some(1), 2),
    #[cfg(target_arch = "x86_64")]
    (libc::SYS_creat, None, 1),
    #[cfg(target_arch = "x86_64")]
    (libc::SYS_mknod, None, 1),
];
/// The mode bits that make an executable file change the user or group.
const CHANGES_USER: [u32; 2] = [libc::S_ISUID, libc::S_ISGID];
/// The flags that create a file. The second constant includes the flag for directories, which is
/// removed here.
const MAKES: [i32; 2] = [libc::O_CREAT, libc::O_TMPFILE & !libc::O_DIRECTORY];

/// The part of a socket's type without the flags.
const SOCKET_TYPES: u64 = 0xf;

type Error = seccompiler::BackendError;

/// The sandbox's filters. If several filters deny a call, any of their errors is acceptable.
pub(super) fn filters() -> Result<[BpfProgram; 2], Error> {
    let lists = [NETWORK, PROCESSES, SHARED, ATTRIBUTES, SYSTEM, OLD];
    let always = lists.into_iter().flatten().map(|call| (*call, Vec::new()));
    let rules = always.chain(conditional()?).chain(makers()?).collect();
    let denied = SeccompAction::Errno(code(libc::EPERM));
    let target = std::env::consts::ARCH.try_into()?;
    let filter = SeccompFilter::new(rules, SeccompAction::Allow, denied, target)?;
    Ok([filter.try_into()?, newer()])
}

/// Calls that are denied only with certain arguments.
fn conditional() -> Result<Vec<(i64, Vec<SeccompRule>)>, Error> {
    use SeccompCmpArgLen::{Dword, Qword};
    use SeccompCmpOp::{Eq, MaskedEq, Ne};
    let rule = |argument, length, operator, value| {
        SeccompRule::new(vec![SeccompCondition::new(argument, length, operator, value)?])
    };
    let number = |value: i32| u64::from(value.unsigned_abs());
    // A datagram socket from such a pair could send data to other sockets.
    let streams = [number(libc::SOCK_STREAM), number(libc::SOCK_SEQPACKET)];
    let others = (0..=SOCKET_TYPES).filter(|kind| !streams.contains(kind));
    let pairs = others.map(|kind| rule(1, Dword, MaskedEq(SOCKET_TYPES), kind));
    let own_family = std::iter::once(rule(0, Dword, Ne, number(libc::AF_UNIX)));
    let namespaces = NAMESPACES.map(number);
    let namespaces = namespaces.map(|flag| rule(0, Qword, MaskedEq(flag), flag));
    // Requests that simulate terminal input.
    let typed = [libc::TIOCSTI, libc::TIOCLINUX].map(|request| rule(1, Dword, Eq, request));
    let of_files = FILE_SYSTEM_REQUESTS.iter().map(|(kind, allowed)| {
        let kind = SeccompCondition::new(1, Dword, MaskedEq(0xff00), kind << 8)?;
        let others = allowed.iter().map(|one| SeccompCondition::new(1, Dword, Ne, *one));
        SeccompRule::new(std::iter::once(Ok(kind)).chain(others).collect::<Result<_, _>>()?)
    });
    Ok(vec![
        (libc::SYS_socketpair, own_family.chain(pairs).collect::<Result<_, _>>()?),
        (libc::SYS_clone, namespaces.into_iter().collect::<Result<_, _>>()?),
        (libc::SYS_ioctl, typed.into_iter().chain(of_files).collect::<Result<_, _>>()?),
        // A lease blocks other processes that write to the file.
        (libc::SYS_fcntl, vec![rule(1, Dword, Eq, number(libc::F_SETLEASE))?]),
        // A process may read limits and lower its own priority.
        (libc::SYS_prlimit64, vec![rule(2, Qword, Ne, 0)?]),
        (libc::SYS_setpriority, vec![rule(1, Dword, Ne, 0)?]),
    ])
}

/// Calls that create files. They are denied if the file would change the user of processes that
/// execute it, because a program outside the sandbox could execute it. Without a flag that creates
/// a file, the mode is irrelevant.
fn makers() -> Result<Vec<(i64, Vec<SeccompRule>)>, Error> {
    let has = |argument, bit: u64| {
        let operator = SeccompCmpOp::MaskedEq(bit);
        SeccompCondition::new(argument, SeccompCmpArgLen::Dword, operator, bit)
    };
    let rules = |flags: Option<u8>, mode: u8| {
        let modes = CHANGES_USER.map(u64::from);
        let makes = MAKES.map(|flag| u64::from(flag.unsigned_abs()));
        let pairs = modes.into_iter().flat_map(|bit| makes.map(|flag| (bit, flag)));
        let rule = |(bit, flag)| {
            let made = flags.map(|place| has(place, flag));
            SeccompRule::new(made.into_iter().chain([has(mode, bit)]).collect::<Result<_, _>>()?)
        };
        pairs.map(rule).collect::<Result<Vec<_>, _>>()
    };
    MAKERS.iter().map(|(call, flags, mode)| Ok((*call, rules(*flags, *mode)?))).collect()
}

/// Makes calls that are newer than the list appear not to exist. The same applies to some kernels'
/// alternative calling convention, whose call numbers are high. `clone3` and `openat2` pass their
/// flags in memory, which filters can't inspect; libraries then fall back to `clone` and `openat`.
fn newer() -> BpfProgram {
    let statement = |code: u32, k| instruction(code, (0, 0), k);
    let number_of_call = 0;
    vec![
        statement(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, number_of_call),
        instruction(libc::BPF_JMP | libc::BPF_JGT | libc::BPF_K, (2, 0), NEWEST),
        instruction(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, (1, 0), CLONE3),
        instruction(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, (0, 1), OPENAT2),
        statement(libc::BPF_RET | libc::BPF_K, libc::SECCOMP_RET_ERRNO | code(libc::ENOSYS)),
        statement(libc::BPF_RET | libc::BPF_K, libc::SECCOMP_RET_ALLOW),
    ]
}

const CLONE3: u32 = 435;
const OPENAT2: u32 = 437;

fn instruction(code: u32, (jt, jf): (u8, u8), k: u32) -> sock_filter {
    sock_filter { code: u16::try_from(code).unwrap_or_default(), jt, jf, k }
}

fn code(error: i32) -> u32 {
    error.unsigned_abs()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_filters_are_programs() {
        let [denied, newer] = filters().unwrap();
        assert!(denied.len() > 300, "{}", denied.len());
        assert!(newer.iter().all(|one| one.code != 0 || one.k == 0), "no code was cut");
    }

    #[test]
    fn each_call_is_listed_once() {
        let lists = [NETWORK, PROCESSES, SHARED, ATTRIBUTES, SYSTEM, OLD];
        let mut calls: Vec<i64> = lists.into_iter().flatten().copied().collect();
        calls.extend(conditional().unwrap().iter().map(|(call, _)| call));
        calls.extend(makers().unwrap().iter().map(|(call, _)| call));
        let count = calls.len();
        calls.sort_unstable();
        calls.dedup();
        assert_eq!(calls.len(), count);
        assert!(calls.iter().all(|call| *call <= i64::from(NEWEST)));
    }
}
