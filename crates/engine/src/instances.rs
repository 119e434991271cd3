//! A model's instances: made one after another, warmed up, and put into lanes.

use std::sync::Mutex;

use galatea_backend::{Device, ExecutionPolicy, Instance, LogLevel, Model, Placement};
use galatea_config::{InstanceGroup, InstanceKind, ModelSpec};
use galatea_infer::Status;

use crate::LogSink;
use crate::host_policy::{CpuCores, HostPolicies, on_cores};
use crate::lane::Lane;
use crate::warmup::Warming;

/// What making a model's instances needs.
pub(crate) struct Making<'a> {
    pub(crate) spec: &'a ModelSpec,
    pub(crate) model: Box<dyn Model>,
    pub(crate) policy: ExecutionPolicy,
    pub(crate) host_policies: &'a HostPolicies,
    pub(crate) warming: Warming<'a>,
    pub(crate) log: &'a LogSink,
}

/// A model with its instances.
pub(crate) struct Made {
    pub(crate) model: Box<dyn Model>,
    pub(crate) lanes: Vec<Lane>,
}

/// One instance that the configuration asks for.
struct Wanted<'a> {
    placement: Placement,
    passive: bool,
    cores: Option<&'a CpuCores>,
}

impl Making<'_> {
    /// Makes every instance; one that fails fails the model.
    pub(crate) fn make(self) -> Result<Made, Status> {
        let wanted = wanted(self.spec, self.host_policies)?;
        // Only threads can be bound to processors.
        let policy = if wanted.iter().any(|one| one.cores.is_some()) {
            ExecutionPolicy::Blocking
        } else {
            self.policy
        };
        let mut lanes = Vec::new();
        let mut passive = Vec::new();
        for one in wanted {
            let Wanted { placement, passive: is_passive, cores } = one;
            let name = &self.spec.name;
            let line = format_args!("creating instance '{}' of '{name}'", placement.name);
            self.log.write(LogLevel::Verbose(1), line);
            let instance = on_cores(cores, || self.instance(&placement, is_passive))??;
            if is_passive {
                passive.push(instance);
            } else {
                let lane = Lane::new(placement.name, instance, policy, self.log.clone());
                lanes.push(lane.on_cores(cores.cloned()));
            }
        }
        let model = if passive.is_empty() {
            self.model
        } else {
            Box::new(WithPassive { _instances: Mutex::new(passive), model: self.model })
        };
        Ok(Made { model, lanes })
    }

    fn instance(&self, at: &Placement, is_passive: bool) -> Result<Box<dyn Instance>, Status> {
        let mut instance = self.model.instance(at)?;
        if !is_passive {
            self.warming.run(instance.as_mut(), &at.name)?;
        }
        Ok(instance)
    }
}

/// A model whose passive instances are kept as long as it: some backends use them
/// for themselves.
struct WithPassive {
    /// They go before their model. Nobody else needs them, so nobody waits here.
    _instances: Mutex<Vec<Box<dyn Instance>>>,
    model: Box<dyn Model>,
}

impl Model for WithPassive {
    fn instance(&self, at: &Placement) -> Result<Box<dyn Instance>, Status> {
        self.model.instance(at)
    }
}

/// Every instance that the configuration's groups ask for, as the original names
/// them.
fn wanted<'a>(spec: &ModelSpec, policies: &'a HostPolicies) -> Result<Vec<Wanted<'a>>, Status> {
    let mut wanted = Vec::new();
    for group in &spec.instance_groups {
        let devices = devices(spec, group)?;
        for number in 0..group.count {
            let name = format!("{}_{number}", group.name);
            wanted.extend(devices.iter().map(|&device| {
                let gpu = match device {
                    Device::Gpu(gpu) => Some(gpu),
                    Device::Cpu | Device::Model => None,
                };
                Wanted {
                    placement: Placement { name: name.clone(), device },
                    passive: group.passive,
                    cores: policies.cores(group, gpu),
                }
            }));
        }
    }
    Ok(wanted)
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
