//! The instances that a configuration requests.

use std::collections::BTreeMap;

use galatea_backend::{Device, Placement};
use galatea_config::{InstanceGroup, InstanceKind, ModelSpec, RateLimiterSpec};
use galatea_infer::Status;

use crate::host_policy::{HostPolicies, ThreadBinding};
use crate::rate_limiter::ResourceRequirements;

/// The properties of a requested instance, except its name: two instances with equal keys are
/// interchangeable.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct InstanceKey {
    /// The group, without its name and count.
    group: InstanceGroup,
    device: Device,
}

impl InstanceKey {
    /// The number of the instance's GPU, if any.
    pub(crate) const fn gpu(&self) -> Option<u32> {
        match self.device {
            Device::Gpu(gpu) => Some(gpu),
            Device::Cpu | Device::Model => None,
        }
    }
}

/// An instance that the configuration requests.
pub(crate) struct PlannedInstance<'a> {
    pub(crate) key: InstanceKey,
    pub(super) placement: Placement,
    pub(crate) is_passive: bool,
    pub(super) binding: Option<&'a ThreadBinding>,
    pub(super) requirements: ResourceRequirements,
}

/// All instances requested by the configuration's groups, with Triton's names.
pub(crate) fn planned_instances<'a>(
    spec: &ModelSpec,
    policies: &'a HostPolicies,
) -> Result<Vec<PlannedInstance<'a>>, Status> {
    let mut planned = Vec::new();
    if spec.ensemble().is_some() {
        // An ensemble has no groups, because it executes nothing itself.
        planned.push(ensemble(spec));
    }
    for group in &spec.instance_groups {
        let devices = devices(spec, group)?;
        for number in 0..group.count {
            let name = format!("{}_{number}", group.name);
            for &device in &devices {
                let gpu = match device {
                    Device::Gpu(gpu) => Some(gpu),
                    Device::Cpu | Device::Model => None,
                };
                let key = InstanceGroup { name: String::new(), count: 0, ..group.clone() };
                planned.push(PlannedInstance {
                    key: InstanceKey { group: key, device },
                    placement: Placement {
                        name: name.clone(),
                        device,
                        host_policy_settings: policies.settings(group, gpu),
                    },
                    is_passive: group.passive,
                    binding: policies.binding(group, gpu)?,
                    requirements: ResourceRequirements::new(group, device),
                });
            }
        }
    }
    Ok(planned)
}

/// The distinct resource requirements of the model's instances.
pub(crate) fn distinct_requirements(spec: &ModelSpec) -> Result<Vec<ResourceRequirements>, Status> {
    let mut distinct: Vec<ResourceRequirements> = Vec::new();
    let policies = HostPolicies::default();
    let planned = planned_instances(spec, &policies)?;
    for instance in planned.into_iter().filter(|instance| !instance.is_passive) {
        if !distinct.contains(&instance.requirements) {
            distinct.push(instance.requirements);
        }
    }
    Ok(distinct)
}

fn ensemble(spec: &ModelSpec) -> PlannedInstance<'static> {
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
    PlannedInstance {
        key: InstanceKey { group, device: Device::Model },
        placement: Placement {
            name: spec.name.clone(),
            device: Device::Model,
            host_policy_settings: BTreeMap::new(),
        },
        is_passive: false,
        binding: None,
        requirements: ResourceRequirements::default(),
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

/// The undefined host policies that groups refer to. Such policies bind nothing, and Triton doesn't
/// warn about them.
pub(crate) fn undefined_policies<'a>(
    spec: &'a ModelSpec,
    policies: &'a HostPolicies,
) -> impl Iterator<Item = &'a str> {
    let named = spec.instance_groups.iter().map(|group| group.host_policy.as_str());
    named.filter(|name| !name.is_empty() && !policies.contains(name))
}
