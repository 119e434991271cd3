//! The instruction sets that a compiled model needs, and those that the CPU has.
//!
//! A model that was compiled for instructions that the CPU lacks would end the process with SIGILL.

use std::collections::BTreeSet;

/// The names of instruction sets in a package (`AOTI_CPU_ISA`), with the flags that Linux reports
/// in `/proc/cpuinfo` for CPUs that have them.
const INSTRUCTION_SETS: [(&str, &[&str]); 10] = [
    ("AVX", &["avx"]),
    ("AVX2", &["avx2", "fma"]),
    ("AVX512", &["avx512f", "avx512dq", "avx512vl", "avx512bw", "fma"]),
    ("AVX512_VNNI", &["avx512_vnni"]),
    ("AVX512_BF16", &["avx512_bf16"]),
    ("AMX_TILE", &["amx_tile", "amx_bf16", "amx_int8"]),
    ("AMX_FP16", &["amx_fp16"]),
    ("ASIMD", &["asimd"]),
    ("NEON", &["asimd"]),
    ("SVE", &["sve"]),
];

/// The CPU's flags, from the text of `/proc/cpuinfo`.
pub(crate) fn cpu_flags(cpuinfo: &str) -> BTreeSet<&str> {
    let is_list = |line: &&str| {
        let key = line.split(':').next().unwrap_or_default().trim();
        matches!(key, "flags" | "Features")
    };
    let list = cpuinfo.lines().find(is_list).and_then(|line| line.split_once(':'));
    list.map_or_else(BTreeSet::new, |(_, flags)| flags.split_ascii_whitespace().collect())
}

/// The names of the `required` instruction sets that a CPU with these flags lacks. Unknown names
/// and an unknown CPU are accepted.
pub(crate) fn missing<'a>(required: &'a str, flags: &BTreeSet<&str>) -> Vec<&'a str> {
    if flags.is_empty() {
        return Vec::new();
    }
    let lacks = |name: &&str| {
        let known = INSTRUCTION_SETS.iter().find(|(known, _)| known.eq_ignore_ascii_case(name));
        known.is_some_and(|(_, needed)| !needed.iter().all(|flag| flags.contains(flag)))
    };
    required.split_ascii_whitespace().filter(lacks).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const OLD: &str = "processor\t: 0\nmodel name\t: X\nflags\t\t: fpu sse2 avx avx2 fma\n\n\
        processor\t: 1\nflags\t\t: fpu sse2 avx avx2 fma\n";

    #[test]
    fn the_instruction_sets_that_the_cpu_lacks_are_named() {
        let flags = cpu_flags(OLD);
        assert!(missing("AVX2", &flags).is_empty());
        assert_eq!(missing("AVX512 AVX512_VNNI AMX_TILE", &flags).len(), 3);
        assert_eq!(missing("avx512", &flags), ["avx512"]);
        let newer = format!("{} avx512f avx512dq avx512vl avx512bw", OLD.trim_end());
        let newer = newer.replace("\n\nprocessor\t: 1\nflags\t\t: fpu sse2 avx avx2 fma", "");
        assert_eq!(missing("AVX512 AVX512_VNNI", &cpu_flags(&newer)), ["AVX512_VNNI"]);
        assert!(missing("ASIMD", &cpu_flags("Features\t: fp asimd\n")).is_empty());
    }

    #[test]
    fn what_is_unknown_is_no_obstacle() {
        assert!(missing("INVALID_VEC_ISA", &cpu_flags(OLD)).is_empty());
        assert!(missing("AVX512", &cpu_flags("")).is_empty());
        assert!(missing("", &cpu_flags(OLD)).is_empty());
    }
}
