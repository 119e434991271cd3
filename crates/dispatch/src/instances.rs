//! A model's instances: made one after another or at the same time, as their
//! backend allows, warmed up, and put into lanes.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

use galatea_backend::{
    Device, ExecutionPolicy, Instance, InstanceCreation, LogLevel, Model, Placement,
};
use galatea_config::{InstanceGroup, InstanceKind, ModelSpec, RateLimiterSpec};
use galatea_infer::{MemoryUsage, Status};

use crate::LogSink;
use crate::host_policy::{Binding, HostPolicies, bound};
use crate::lane::Lane;
use crate::permits::Needs;
use crate::warmup::Warming;

/// How many instances of a model are made at the same time. Making one may take a
/// process and a processor for seconds, and there may be hundreds.
const AT_ONCE_MAX: usize = 16;

/// What making a model's instances needs.
pub(crate) struct Making<'a> {
    pub(crate) spec: &'a ModelSpec,
    pub(crate) model: &'a dyn Model,
    pub(crate) policy: ExecutionPolicy,
    /// Whether there is a rate limiter.
    pub(crate) rate_limiting: bool,
    pub(crate) warming: Warming<'a>,
    pub(crate) log: &'a LogSink,
}

/// A model's instances.
pub(crate) struct Made {
    pub(crate) lanes: Vec<Lane>,
    /// What each lane's instance is, in the same order.
    pub(crate) keys: Vec<InstanceKey>,
    pub(crate) passive: Vec<Box<dyn Instance>>,
}

/// What makes an instance fit what a configuration asks for, whatever it is
/// called.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct InstanceKey {
    /// Without name and count.
    group: InstanceGroup,
    device: Device,
}

/// One instance that the configuration asks for.
pub(crate) struct Wanted<'a> {
    pub(crate) key: InstanceKey,
    placement: Placement,
    passive: bool,
    binding: Option<&'a Binding>,
    needs: Needs,
}

impl Making<'_> {
    /// Makes every instance that is wanted; one that fails fails all.
    pub(crate) fn make(&self, wanted: Vec<Wanted<'_>>) -> Result<Made, Status> {
        let limited = |one: &Wanted<'_>| self.rate_limiting && !one.needs.is_empty();
        // Only threads can be bound to processors, or wait for permits.
        let policy = if wanted.iter().any(|one| one.binding.is_some() || limited(one)) {
            ExecutionPolicy::Blocking
        } else {
            self.policy
        };
        let instances: Vec<Box<dyn Instance>> = match self.model.instance_creation() {
            InstanceCreation::Parallel if wanted.len() > 1 => self.at_once(&wanted)?,
            InstanceCreation::Parallel | InstanceCreation::Sequential => {
                wanted.iter().map(|one| self.instance(one)).collect::<Result<_, _>>()?
            }
        };
        let mut made = Made { lanes: Vec::new(), keys: Vec::new(), passive: Vec::new() };
        for (one, instance) in wanted.into_iter().zip(instances) {
            let Wanted { key, placement, passive: is_passive, binding, needs } = one;
            if is_passive {
                made.passive.push(instance);
            } else {
                let lane = Lane::new(placement.name, instance, policy, self.log.clone());
                let needs = if self.rate_limiting { needs } else { Needs::default() };
                made.lanes.push(lane.bound(binding.cloned()).with_needs(needs));
                made.keys.push(key);
            }
        }
        Ok(made)
    }

    /// Makes them on this thread and others; once one has failed, no other is begun.
    fn at_once(&self, wanted: &[Wanted<'_>]) -> Result<Vec<Box<dyn Instance>>, Status> {
        let next = AtomicUsize::new(0);
        let has_failed = AtomicBool::new(false);
        let places: Vec<Mutex<Option<Outcome>>> = wanted.iter().map(|_| Mutex::default()).collect();
        let work = || {
            while !has_failed.load(Ordering::Relaxed) {
                let number = next.fetch_add(1, Ordering::Relaxed);
                let (Some(one), Some(place)) = (wanted.get(number), places.get(number)) else {
                    break;
                };
                let outcome = self.instance(one);
                if outcome.is_err() {
                    has_failed.store(true, Ordering::Relaxed);
                }
                *place.lock().unwrap_or_else(PoisonError::into_inner) = Some(outcome);
            }
        };
        std::thread::scope(|scope| {
            for _ in 1..wanted.len().min(AT_ONCE_MAX) {
                let thread = std::thread::Builder::new().name(String::from("galatea-instance"));
                // Those that can be had do the work, this one in any case.
                let _ = thread.spawn_scoped(scope, work);
            }
            work();
        });
        let outcomes = places.into_iter();
        outcomes
            .filter_map(|place| place.into_inner().unwrap_or_else(PoisonError::into_inner))
            .collect()
    }

    fn instance(&self, wanted: &Wanted<'_>) -> Outcome {
        let (at, name) = (&wanted.placement, &self.spec.name);
        let line = format_args!("creating instance '{}' of '{name}'", at.name);
        self.log.write(LogLevel::Verbose(1), line);
        bound(wanted.binding, || {
            let mut instance = self.model.create_instance(at)?;
            if !wanted.passive {
                self.warming.run(instance.as_mut(), &at.name)?;
            }
            Ok(instance)
        })?
    }
}

/// What came of making an instance.
type Outcome = Result<Box<dyn Instance>, Status>;

/// A model that keeps its passive instances.
pub(crate) fn with_passive(
    model: Box<dyn Model>,
    passive: Vec<Box<dyn Instance>>,
) -> Box<dyn Model> {
    if passive.is_empty() {
        return model;
    }
    Box::new(WithPassive { _instances: Mutex::new(passive), model })
}

/// A model whose passive instances are kept as long as it: some backends use them
/// for themselves.
struct WithPassive {
    /// They go before their model. Nobody else needs them, so nobody waits here.
    _instances: Mutex<Vec<Box<dyn Instance>>>,
    model: Box<dyn Model>,
}

impl Model for WithPassive {
    fn create_instance(&self, at: &Placement) -> Result<Box<dyn Instance>, Status> {
        self.model.create_instance(at)
    }

    fn instance_creation(&self) -> InstanceCreation {
        self.model.instance_creation()
    }

    fn memory_usage(&self) -> Vec<MemoryUsage> {
        self.model.memory_usage()
    }

    fn check_ready(&self) -> Result<(), Status> {
        self.model.check_ready()
    }

    fn readiness_may_block(&self) -> bool {
        self.model.readiness_may_block()
    }
}

/// Every instance that the configuration's groups ask for, as the original names
/// them.
pub(crate) fn wanted<'a>(
    spec: &ModelSpec,
    policies: &'a HostPolicies,
) -> Result<Vec<Wanted<'a>>, Status> {
    let mut wanted = Vec::new();
    if spec.ensemble().is_some() {
        // It has no groups: it executes nothing itself.
        wanted.push(ensemble(spec));
    }
    for group in &spec.instance_groups {
        let devices = devices(spec, group)?;
        for number in 0..group.count {
            let name = format!("{}_{number}", group.name);
            wanted.extend(devices.iter().map(|&device| {
                let gpu = match device {
                    Device::Gpu(gpu) => Some(gpu),
                    Device::Cpu | Device::Model => None,
                };
                let key = InstanceGroup { name: String::new(), count: 0, ..group.clone() };
                Wanted {
                    key: InstanceKey { group: key, device },
                    placement: Placement {
                        name: name.clone(),
                        device,
                        host_policy_settings: policies.settings(group, gpu),
                    },
                    passive: group.passive,
                    binding: policies.binding(group, gpu),
                    needs: Needs::new(group, device),
                }
            }));
        }
    }
    Ok(wanted)
}

/// What the model's instances need to execute, each need once.
pub(crate) fn distinct_needs(spec: &ModelSpec) -> Result<Vec<Needs>, Status> {
    let mut distinct: Vec<Needs> = Vec::new();
    let policies = HostPolicies::default();
    for instance in wanted(spec, &policies)?.into_iter().filter(|instance| !instance.passive) {
        if !distinct.contains(&instance.needs) {
            distinct.push(instance.needs);
        }
    }
    Ok(distinct)
}

fn ensemble(spec: &ModelSpec) -> Wanted<'static> {
    let group = InstanceGroup {
        name: String::new(),
        kind: InstanceKind::Model,
        count: 0,
        gpus: Vec::new(),
        passive: false,
        host_policy: String::new(),
        rate_limiter: RateLimiterSpec::default(),
        secondary_devices: Vec::new(),
    };
    Wanted {
        key: InstanceKey { group, device: Device::Model },
        placement: Placement {
            name: spec.name.clone(),
            device: Device::Model,
            host_policy_settings: BTreeMap::new(),
        },
        passive: false,
        binding: None,
        needs: Needs::default(),
    }
}

fn devices(spec: &ModelSpec, group: &InstanceGroup) -> Result<Vec<Device>, Status> {
    match group.kind {
        InstanceKind::Cpu => Ok(vec![Device::Cpu]),
        InstanceKind::Model => Ok(vec![Device::Model]),
        InstanceKind::Gpu => {
            let gpus = group.gpus.iter().map(|&gpu| u32::try_from(gpu).map(Device::Gpu));
            gpus.collect::<Result<_, _>>().map_err(|_| {
                Status::invalid_argument(format!(
                    "instance group '{}' of model '{}' names a negative GPU",
                    group.name, spec.name
                ))
            })
        }
    }
}

/// The policies that groups name and nobody defined: they bind nothing, as in the
/// original, which doesn't say so.
pub(crate) fn undefined_policies<'a>(
    spec: &'a ModelSpec,
    policies: &'a HostPolicies,
) -> impl Iterator<Item = &'a str> {
    let named = spec.instance_groups.iter().map(|group| group.host_policy.as_str());
    named.filter(|name| !name.is_empty() && !policies.contains(name))
}
