//! On which processors a model's threads run.

use std::collections::BTreeMap;
use std::fmt;

use galatea_config::{InstanceGroup, InstanceKind, ModelSpec};
use galatea_infer::Status;
use rustix::thread::{CpuSet, sched_setaffinity};

/// Processors, by number.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CpuCores(Vec<usize>);

impl CpuCores {
    /// Reads ranges such as `0-3,8-11`.
    ///
    /// # Errors
    ///
    /// What the text should look like.
    pub fn parse(text: &str) -> Result<Self, String> {
        let refuse = |range: &str| {
            format!(
                "host policy setting 'cpu-cores' format is \
                 '<lower_cpu_core_id>-<upper_cpu_core_id>'. Got {range}"
            )
        };
        let mut cores = Vec::new();
        for range in text.split(',') {
            let (lower, upper) = range.split_once('-').ok_or_else(|| refuse(range))?;
            let number = |text: &str| text.trim().parse::<usize>().map_err(|_| refuse(range));
            let (lower, upper) = (number(lower)?, number(upper)?);
            if lower > upper || upper >= CpuSet::MAX_CPU {
                return Err(refuse(range));
            }
            cores.extend(lower..=upper);
        }
        cores.sort_unstable();
        cores.dedup();
        Ok(Self(cores))
    }

    fn bind_this_thread(&self) -> Result<(), Status> {
        let mut set = CpuSet::new();
        self.0.iter().for_each(|&core| set.set(core));
        sched_setaffinity(None, &set).map_err(|error| {
            Status::internal(format!("unable to bind a thread to the CPU cores {self}: {error}"))
        })
    }
}

impl fmt::Display for CpuCores {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let cores: Vec<String> = self.0.iter().map(ToString::to_string).collect();
        f.write_str(&cores.join(","))
    }
}

/// The policies that the server was given, by name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HostPolicies(BTreeMap<String, CpuCores>);

impl HostPolicies {
    /// Defines a policy, or defines it anew.
    pub fn set(&mut self, name: &str, cores: CpuCores) {
        self.0.insert(String::from(name), cores);
    }

    /// Whether a policy is defined.
    pub(crate) fn contains(&self, name: &str) -> bool {
        self.0.contains_key(name)
    }

    /// The processors for a group's instances on a device; `None` for any.
    pub(crate) fn cores(&self, group: &InstanceGroup, gpu: Option<u32>) -> Option<&CpuCores> {
        if !group.host_policy.is_empty() {
            return self.0.get(&group.host_policy);
        }
        // The names that the original gives.
        match (group.kind, gpu) {
            (InstanceKind::Gpu, Some(gpu)) => self.0.get(&format!("gpu_{gpu}")),
            (InstanceKind::Gpu, None) => None,
            (InstanceKind::Cpu, _) => self.0.get("cpu"),
            (InstanceKind::Model, _) => self.0.get("model"),
        }
    }

    /// The processors for what all of a model's instances share; `None` for any,
    /// if there is an instance that may run anywhere.
    pub(crate) fn shared_cores(&self, spec: &ModelSpec) -> Option<CpuCores> {
        let mut all = Vec::new();
        for group in spec.instance_groups.iter().filter(|group| !group.passive) {
            let gpus = group.gpus.iter().map(|&gpu| u32::try_from(gpu).ok());
            let devices: Vec<Option<u32>> =
                if group.gpus.is_empty() { vec![None] } else { gpus.collect() };
            for gpu in devices {
                all.extend(self.cores(group, gpu)?.0.iter().copied());
            }
        }
        all.sort_unstable();
        all.dedup();
        (!all.is_empty()).then_some(CpuCores(all))
    }
}

/// Does something on a thread that is bound to these processors; threads that it
/// starts are bound to them too.
///
/// # Errors
///
/// `Internal` if there is no such processor, or no thread to be had.
pub(crate) fn on_cores<T: Send>(
    cores: Option<&CpuCores>,
    act: impl FnOnce() -> T + Send,
) -> Result<T, Status> {
    let Some(cores) = cores else { return Ok(act()) };
    std::thread::scope(|scope| {
        let bound = || cores.bind_this_thread().map(|()| act());
        let thread = std::thread::Builder::new()
            .spawn_scoped(scope, bound)
            .map_err(|error| Status::internal(format!("can't start a thread: {error}")))?;
        thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}

#[cfg(test)]
mod tests {
    use galatea_config::{ConfigDraft, Support};
    use rustix::thread::sched_getaffinity;

    use super::*;

    fn bound_to(cores: &CpuCores) -> bool {
        let now = sched_getaffinity(None).unwrap();
        (0..CpuSet::MAX_CPU).all(|core| now.is_set(core) == cores.0.contains(&core))
    }

    /// The first processor that this process may use.
    fn first_core() -> CpuCores {
        let now = sched_getaffinity(None).unwrap();
        CpuCores(vec![(0..CpuSet::MAX_CPU).find(|&core| now.is_set(core)).unwrap()])
    }

    #[test]
    fn ranges_of_cores_are_read() {
        let check = |text: &str, expected: Result<&str, &str>| {
            let found = CpuCores::parse(text).map(|cores| cores.to_string());
            match expected {
                Ok(expected) => assert_eq!(found.unwrap(), expected, "{text}"),
                Err(got) => assert!(found.unwrap_err().ends_with(&format!("Got {got}")), "{text}"),
            }
        };
        check("0-0", Ok("0"));
        check("0-2,5-6", Ok("0,1,2,5,6"));
        check("4-5,1-4", Ok("1,4,5").map(|_| "1,2,3,4,5"));
        for wrong in ["", "1", "1-", "-1", "2-1", "a-b", "0-99999"] {
            check(wrong, Err(wrong));
        }
        check("0-1,7", Err("7"));
    }

    #[test]
    fn a_policy_is_found_by_its_name_or_that_of_the_kind() {
        let mut policies = HostPolicies::default();
        policies.set("cpu", CpuCores(vec![0]));
        policies.set("other", CpuCores(vec![1]));
        let shared = |groups: &str| {
            let text = format!("name: 'm' backend: 'identity' {groups}");
            let mut draft = ConfigDraft::from_pbtxt("config.pbtxt", &text).unwrap();
            draft.resolve_identity("m", &[]).unwrap();
            let spec = draft.finish(&Support::default()).unwrap();
            policies.shared_cores(&spec).map(|cores| cores.to_string())
        };
        assert_eq!(shared("").as_deref(), Some("0"));
        assert_eq!(shared("instance_group { host_policy: 'other' }").as_deref(), Some("1"));
        let both = "instance_group { } instance_group { host_policy: 'other' }";
        assert_eq!(shared(both).as_deref(), Some("0,1"));
        assert_eq!(shared("instance_group { host_policy: 'unknown' }"), None);
        assert_eq!(shared("instance_group { kind: KIND_MODEL } instance_group { }"), None);
        let passive = "instance_group { } instance_group { passive: true host_policy: 'other' }";
        assert_eq!(shared(passive).as_deref(), Some("0"));
    }

    #[test]
    fn threads_are_bound_and_so_are_those_that_they_start() {
        let cores = first_core();
        let inside = on_cores(Some(&cores), || {
            bound_to(&cores) && std::thread::scope(|s| s.spawn(|| bound_to(&cores)).join().unwrap())
        });
        assert_eq!(inside, Ok(true));
        let before = sched_getaffinity(None).unwrap();
        let outside = on_cores(None, || sched_getaffinity(None).unwrap()).unwrap();
        assert!((0..CpuSet::MAX_CPU).all(|core| before.is_set(core) == outside.is_set(core)));
    }

    #[test]
    fn a_processor_that_is_not_there_is_an_error() {
        let error = on_cores(Some(&CpuCores(vec![CpuSet::MAX_CPU - 1])), || ()).unwrap_err();
        assert!(error.message().contains("CPU cores 1023"), "{error}");
    }
}
