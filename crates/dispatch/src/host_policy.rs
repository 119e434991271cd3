//! Host policies, which set the processors for the threads of a model's instances and the location
//! of the threads' memory.
//!
//! Threads started by a bound thread inherit its binding. Lanes and a backend's own threads are
//! therefore bound by starting them through [`run_bound`].

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use galatea_config::{InstanceGroup, InstanceKind, ModelSpec};
use galatea_infer::Status;
use galatea_numa::{Node, bind_memory_of_this_thread};
use rustix::thread::{CpuSet, sched_setaffinity};

/// A set of processors, by number.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct CpuCores(Vec<usize>);

impl CpuCores {
    /// Parses ranges such as `0-3,8-11` the way Triton does: characters after a number's digits are
    /// ignored, and a range may end before it begins.
    ///
    /// # Errors
    ///
    /// `InvalidArgument` with Triton's message.
    fn parse(text: &str) -> Result<Self, Status> {
        let mut cores = BTreeSet::new();
        let mut rest = text;
        loop {
            let comma = rest.find(',');
            let Some((lower, after)) = rest.split_once('-') else {
                return Err(Status::invalid_argument(format!(
                    "host policy setting 'cpu-cores' format is \
                     '<lower_cpu_core_id>-<upper_cpu_core_id>'. Got {}",
                    &rest[..comma.unwrap_or(rest.len())]
                )));
            };
            let lower = leading_integer("cpu-cores", lower)?;
            let upper = leading_integer("cpu-cores", after.split(',').next().unwrap_or(after))?;
            cores.extend((lower..=upper).map_while(known_core));
            match comma {
                Some(comma) => rest = &rest[comma + 1..],
                None => return Ok(Self(cores.into_iter().collect())),
            }
        }
    }

    fn bind_this_thread(&self) -> Result<(), Status> {
        let mut set = CpuSet::new();
        self.0.iter().for_each(|&core| set.set(core));
        sched_setaffinity(None, &set).map_err(|error| {
            Status::internal(format!(
                "Unable to set NUMA thread affinity: {error}: CPU cores {self}"
            ))
        })
    }
}

/// Converts a core number, if a set of cores can represent it.
fn known_core(number: i32) -> Option<usize> {
    usize::try_from(number).ok().filter(|core| *core < CpuSet::MAX_CPU)
}

/// Parses the number at the start of a setting's value in the same way as C++'s `stoi`.
fn leading_integer(setting: &str, text: &str) -> Result<i32, Status> {
    let unsigned = text.trim_ascii_start();
    let (sign, digits) = match unsigned.strip_prefix('-') {
        Some(digits) => ("-", digits),
        None => ("", unsigned.strip_prefix('+').unwrap_or(unsigned)),
    };
    let end = digits.bytes().position(|byte| !byte.is_ascii_digit()).unwrap_or(digits.len());
    format!("{sign}{}", &digits[..end]).parse().map_err(|_| {
        Status::invalid_argument(format!(
            "Parsing '{setting}' value: Can't parse '{text}' to integer"
        ))
    })
}

impl fmt::Display for CpuCores {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let cores: Vec<String> = self.0.iter().map(ToString::to_string).collect();
        f.write_str(&cores.join(","))
    }
}

/// The processors and memory to which a thread is bound.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct ThreadBinding {
    /// The processors; `None` means any.
    cores: Option<CpuCores>,
    /// The NUMA nodes for its memory; empty means any.
    nodes: BTreeSet<Node>,
}

impl ThreadBinding {
    /// Returns the union of both bindings. If either binding allows any processor or any memory, so
    /// does the union.
    fn union(self, other: &Self) -> Self {
        let cores = self.cores.zip(other.cores.as_ref()).map(|(own, others)| {
            let all: BTreeSet<usize> = own.0.into_iter().chain(others.0.iter().copied()).collect();
            CpuCores(all.into_iter().collect())
        });
        let one_is_unbound = self.nodes.is_empty() || other.nodes.is_empty();
        let nodes = self.nodes.into_iter().chain(other.nodes.iter().cloned());
        Self { cores, nodes: nodes.filter(|_| !one_is_unbound).collect() }
    }

    fn bind_this_thread(&self) -> Result<(), Status> {
        if let Some(cores) = &self.cores {
            cores.bind_this_thread()?;
        }
        if self.nodes.is_empty() {
            return Ok(());
        }
        bind_memory_of_this_thread(&self.nodes).map_err(|error| {
            let numbers: Vec<String> =
                self.nodes.iter().map(|node| node.number().to_string()).collect();
            Status::internal(format!(
                "Unable to set NUMA memory policy: {error}: NUMA node {}",
                numbers.join(",")
            ))
        })
    }
}

/// The server's host policies, by name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HostPolicies(BTreeMap<String, HostPolicy>);

#[derive(Clone, Debug, PartialEq, Eq)]
struct HostPolicy {
    /// The binding, or an error in the settings, which prevents models that use the policy from
    /// loading.
    binding: Result<ThreadBinding, Status>,
    /// The settings as written, for backends.
    settings: BTreeMap<String, String>,
}

/// A setting of a host policy.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum HostPolicySetting {
    /// The processors, as ranges such as `0-3,8-11`.
    CpuCores,
    /// The NUMA node number for memory.
    NumaNode,
}

impl HostPolicySetting {
    /// Finds a setting by name.
    pub fn by_name(name: &str) -> Option<Self> {
        [Self::CpuCores, Self::NumaNode].into_iter().find(|setting| setting.name() == name)
    }

    const fn name(self) -> &'static str {
        match self {
            Self::CpuCores => "cpu-cores",
            Self::NumaNode => "numa-node",
        }
    }
}

/// The binding requested by a policy's settings; the processors are read first, as in Triton.
fn binding_of(settings: &BTreeMap<String, String>) -> Result<ThreadBinding, Status> {
    let value = |setting: HostPolicySetting| settings.get(setting.name());
    let cores = value(HostPolicySetting::CpuCores).map(|text| CpuCores::parse(text)).transpose()?;
    let node = value(HostPolicySetting::NumaNode).map(|text| node_of(text)).transpose()?;
    Ok(ThreadBinding { cores, nodes: node.into_iter().collect() })
}

fn node_of(text: &str) -> Result<Node, Status> {
    let number = leading_integer("numa-node", text)?;
    let found = match u32::try_from(number) {
        Ok(number) => Node::find(number),
        Err(_) => Err(format!("there is no NUMA node {number}")),
    };
    found.map_err(|error| Status::internal(format!("Unable to set NUMA memory policy: {error}")))
}

impl HostPolicies {
    /// Sets one of a policy's settings. As in Triton, an invalid value is reported as an error of
    /// each model that uses the policy.
    pub fn set(&mut self, name: &str, setting: HostPolicySetting, value: &str) {
        let settings = self.0.get(name).map(|policy| policy.settings.clone());
        let mut settings = settings.unwrap_or_default();
        settings.insert(String::from(setting.name()), String::from(value));
        let policy = HostPolicy { binding: binding_of(&settings), settings };
        self.0.insert(String::from(name), policy);
    }

    /// Returns true if a policy with this name is defined.
    pub(crate) fn contains(&self, name: &str) -> bool {
        self.0.contains_key(name)
    }

    /// The binding for a group's instances on a device.
    ///
    /// # Errors
    ///
    /// The mistake in the settings of the group's policy.
    pub(crate) fn binding(
        &self,
        group: &InstanceGroup,
        gpu: Option<u32>,
    ) -> Result<Option<&ThreadBinding>, Status> {
        let binding = self.policy_of_group(group, gpu).map(|policy| policy.binding.as_ref());
        binding.transpose().map_err(Clone::clone)
    }

    /// The policy settings for a group's instances on a device.
    pub(crate) fn settings(
        &self,
        group: &InstanceGroup,
        gpu: Option<u32>,
    ) -> BTreeMap<String, String> {
        self.policy_of_group(group, gpu).map(|policy| policy.settings.clone()).unwrap_or_default()
    }

    fn policy_of_group(&self, group: &InstanceGroup, gpu: Option<u32>) -> Option<&HostPolicy> {
        if !group.host_policy.is_empty() {
            return self.0.get(&group.host_policy);
        }
        // The default names are Triton's.
        match (group.kind, gpu) {
            (InstanceKind::Gpu, Some(gpu)) => self.0.get(&format!("gpu_{gpu}")),
            (InstanceKind::Gpu, None) => None,
            (InstanceKind::Cpu, _) => self.0.get("cpu"),
            (InstanceKind::Model, _) => self.0.get("model"),
        }
    }

    /// The binding for resources shared by all of a model's instances; `None` if an instance may
    /// run anywhere.
    ///
    /// # Errors
    ///
    /// The mistake in the settings of a group's policy.
    pub(crate) fn shared_binding(&self, spec: &ModelSpec) -> Result<Option<ThreadBinding>, Status> {
        let mut all: Option<ThreadBinding> = None;
        for group in spec.instance_groups.iter().filter(|group| !group.passive) {
            let gpus = group.gpus.iter().map(|&gpu| u32::try_from(gpu).ok());
            let devices: Vec<Option<u32>> =
                if group.gpus.is_empty() { vec![None] } else { gpus.collect() };
            for gpu in devices {
                let Some(binding) = self.binding(group, gpu)? else { return Ok(None) };
                all = Some(match all {
                    None => binding.clone(),
                    Some(all) => all.union(binding),
                });
            }
        }
        Ok(all)
    }
}

/// Calls `act` on a thread with this binding; without a binding, on the current thread.
///
/// # Errors
///
/// `Internal` if a processor doesn't exist, or if the system refuses the binding or a thread.
pub(crate) fn run_bound<T: Send>(
    binding: Option<&ThreadBinding>,
    act: impl FnOnce() -> T + Send,
) -> Result<T, Status> {
    let Some(binding) = binding else { return Ok(act()) };
    std::thread::scope(|scope| {
        let bound = || binding.bind_this_thread().map(|()| act());
        let thread = std::thread::Builder::new()
            .spawn_scoped(scope, bound)
            .map_err(|error| Status::internal(format!("can't start a thread: {error}")))?;
        thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}

#[cfg(test)]
mod tests {
    use galatea_config::SupportedFeatures;
    use galatea_pbtxt::parse_config_draft;
    use rustix::thread::sched_getaffinity;

    use super::*;

    fn bound_to(cores: &CpuCores) -> bool {
        let now = sched_getaffinity(None).unwrap();
        (0..CpuSet::MAX_CPU).all(|core| now.is_set(core) == cores.0.contains(&core))
    }

    fn on(cores: &CpuCores) -> ThreadBinding {
        ThreadBinding { cores: Some(cores.clone()), nodes: BTreeSet::new() }
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
                Err(end) => {
                    let error = found.unwrap_err();
                    assert!(error.message().ends_with(end), "{text}: {error}");
                }
            }
        };
        check("0-0", Ok("0"));
        check("0-2,5-6", Ok("0,1,2,5,6"));
        check("4-5,1-4", Ok("1,4,5").map(|_| "1,2,3,4,5"));
        // Triton accepts these values, odd as they are.
        check(" 1x-3y", Ok("1,2,3"));
        check("1,2-3", Ok("1,2,3"));
        check("2-1", Ok(""));
        check("1023-2147483647", Ok("1023"));
        for wrong in ["", "1"] {
            check(wrong, Err(&format!("'<lower_cpu_core_id>-<upper_cpu_core_id>'. Got {wrong}")));
        }
        check("0-1,7", Err("Got 7"));
        check("4,5", Err("Got 4"));
        for (wrong, number) in [("1-", ""), ("-1", ""), ("a-b", "a"), ("0-x,1-1", "x")] {
            let end = format!("Parsing 'cpu-cores' value: Can't parse '{number}' to integer");
            check(wrong, Err(&end));
        }
        check("0-9999999999", Err("Can't parse '9999999999' to integer"));
    }

    #[test]
    // row: INST-09
    fn a_policy_is_found_by_its_name_or_that_of_the_kind() {
        let mut policies = HostPolicies::default();
        policies.set("cpu", HostPolicySetting::CpuCores, "0-0");
        policies.set("other", HostPolicySetting::CpuCores, "1-1");
        let shared = |groups: &str| {
            let text = format!("name: 'm' backend: 'identity' {groups}");
            let mut draft = parse_config_draft("config.pbtxt", &text).unwrap();
            draft.resolve_name_and_backend("m", &[]).unwrap();
            let spec = draft.into_validated_spec(&SupportedFeatures::default()).unwrap();
            let shared = policies.shared_binding(&spec).unwrap();
            shared.map(|binding| binding.cores.unwrap().to_string())
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
        let inside = run_bound(Some(&on(&cores)), || {
            bound_to(&cores) && std::thread::scope(|s| s.spawn(|| bound_to(&cores)).join().unwrap())
        });
        assert_eq!(inside, Ok(true));
        let before = sched_getaffinity(None).unwrap();
        let outside = run_bound(None, || sched_getaffinity(None).unwrap()).unwrap();
        assert!((0..CpuSet::MAX_CPU).all(|core| before.is_set(core) == outside.is_set(core)));
    }

    #[test]
    fn a_processor_that_is_not_there_is_an_error() {
        let error = run_bound(Some(&on(&CpuCores(vec![CpuSet::MAX_CPU - 1]))), || ()).unwrap_err();
        assert!(error.message().starts_with("Unable to set NUMA thread affinity: "), "{error}");
        assert!(error.message().ends_with("CPU cores 1023"), "{error}");
        assert!(run_bound(Some(&on(&CpuCores(Vec::new()))), || ()).is_err());
    }

    #[test]
    fn a_node_that_is_not_there_is_an_error() {
        let mut policies = HostPolicies::default();
        policies.set("far", HostPolicySetting::NumaNode, "1023");
        let error = policies.0["far"].binding.clone().unwrap_err();
        assert!(error.message().starts_with("Unable to set NUMA memory policy: "), "{error}");
        policies.set("far", HostPolicySetting::NumaNode, "x");
        let expected = "Parsing 'numa-node' value: Can't parse 'x' to integer";
        assert_eq!(policies.0["far"].binding, Err(Status::invalid_argument(expected)));
    }

    #[test]
    fn a_node_binds_the_memory_alone() {
        let Ok(node) = Node::find(0) else { return };
        let mut policies = HostPolicies::default();
        policies.set("near", HostPolicySetting::NumaNode, "0");
        let binding = policies.0["near"].binding.clone().unwrap();
        assert_eq!((binding.cores, binding.nodes), (None, BTreeSet::from([node.clone()])));
        policies.set("near", HostPolicySetting::CpuCores, "0-0");
        let binding = policies.0["near"].binding.clone().unwrap();
        assert_eq!((binding.cores, binding.nodes), (Some(CpuCores(vec![0])), [node].into()));
        let settings = [("cpu-cores", "0-0"), ("numa-node", "0")];
        let settings = settings.map(|(name, value)| (name.into(), value.into()));
        assert_eq!(policies.0["near"].settings, BTreeMap::from(settings));
    }

    #[test]
    fn what_is_shared_is_bound_as_far_as_all_are() {
        let Ok(node) = Node::find(0) else { return };
        let near = ThreadBinding { cores: Some(CpuCores(vec![1])), nodes: BTreeSet::from([node]) };
        let both = near.clone().union(&on(&CpuCores(vec![0])));
        assert_eq!(both, on(&CpuCores(vec![0, 1])));
        assert_eq!(near.clone().union(&near), near);
        let on_any = ThreadBinding { cores: None, ..near.clone() };
        assert_eq!(near.union(&on_any), on_any);
    }

    #[test]
    fn memory_is_bound_with_the_processors() {
        let mut policies = HostPolicies::default();
        policies.set("near", HostPolicySetting::NumaNode, "0");
        if policies.0["near"].binding.is_err() {
            return;
        }
        let first = first_core();
        policies.set("near", HostPolicySetting::CpuCores, &format!("{first}-{first}"));
        let maps = || std::fs::read_to_string("/proc/thread-self/numa_maps").unwrap_or_default();
        let binding = policies.0["near"].binding.clone().unwrap();
        match run_bound(Some(&binding), || (bound_to(&first_core()), maps())) {
            Ok((is_bound, maps)) => {
                assert!(is_bound);
                assert!(maps.is_empty() || maps.contains(" bind:0 "), "{maps}");
            }
            // Containers may forbid it.
            Err(error) => {
                assert!(
                    error.message().starts_with("Unable to set NUMA memory policy: "),
                    "{error}"
                );
            }
        }
    }
}
