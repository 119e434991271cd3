//! Rate limiter resources: their amounts, and the requirements of instances.

use std::collections::BTreeMap;

use galatea_backend::Device;
use galatea_config::InstanceGroup;
use galatea_infer::Status;

/// The way instances of all models share resources.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum RateLimiterMode {
    /// Resources are not limited: `rate_limiter` settings in configurations are ignored.
    #[default]
    Off,
    /// An instance executes when the resources that it requires are free; the instance with the
    /// fewest executions goes first. Without a list, the amount of a resource is the largest that
    /// any instance requires.
    ExecutionCount(Vec<ResourceLimit>),
}

/// The amount of a resource.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ResourceLimit {
    /// The resource's name.
    pub name: String,
    /// The number of units.
    pub count: u32,
    /// The device to which the limit applies; `None` means each device.
    pub device: Option<u32>,
}

/// The resources that an instance requires during execution.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct ResourceRequirements {
    pub(super) resources: Vec<(Resource, u64)>,
    pub(super) priority: u32,
}

/// A resource, identified by its name and scope.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Resource {
    pub(super) scope: ResourceScope,
    pub(super) name: String,
}

#[derive(Copy, Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum ResourceScope {
    /// A single resource for the whole server.
    Global,
    Device(u32),
}

impl ResourceRequirements {
    /// The requirements of a group's instance on a device. As in Triton, an instance without a GPU
    /// is assigned to device 0, and if a resource is named twice, the last count applies.
    pub(crate) fn new(group: &InstanceGroup, device: Device) -> Self {
        let device = match device {
            Device::Gpu(gpu) => gpu,
            Device::Cpu | Device::Model => 0,
        };
        let resources = group.rate_limiter.resources.iter().map(|one| {
            let scope =
                if one.global { ResourceScope::Global } else { ResourceScope::Device(device) };
            (Resource { name: one.name.clone(), scope }, u64::from(one.count))
        });
        let resources: BTreeMap<Resource, u64> = resources.collect();
        Self { resources: resources.into_iter().collect(), priority: group.rate_limiter.priority }
    }

    /// Returns true if the instance may execute without a permit.
    pub(crate) fn is_empty(&self) -> bool {
        self.resources.is_empty()
    }
}

impl Resource {
    /// Checks that a resource with this name has the same scope everywhere.
    pub(super) fn check_scope<'a>(
        &self,
        all: impl Iterator<Item = &'a ResourceRequirements>,
    ) -> Result<(), Status> {
        let is_global = |resource: &Self| resource.scope == ResourceScope::Global;
        let mut resources = all.flat_map(|one| &one.resources);
        let differs = |(other, _): &(Self, u64)| {
            other.name == self.name && is_global(other) != is_global(self)
        };
        if resources.any(differs) {
            return Err(Status::invalid_argument(format!(
                "Resource \"{}\" is present as both global and device-specific resource in the \
                 model configuration.",
                self.name
            )));
        }
        Ok(())
    }
}

/// The limits set by the operator.
#[derive(Debug)]
pub(super) struct ResourceLimits(pub(super) Vec<ResourceLimit>);

impl ResourceLimits {
    /// The limit for a resource; `None` if there is no list. A list limits every resource: the
    /// limit is zero for resources that it doesn't name.
    pub(super) fn limit_of(&self, resource: &Resource) -> Option<u64> {
        if self.0.is_empty() {
            return None;
        }
        let applies = |limit: &&ResourceLimit| {
            let is_in_scope = match resource.scope {
                ResourceScope::Global => true,
                ResourceScope::Device(device) => limit.device.is_none_or(|other| other == device),
            };
            limit.name == resource.name && is_in_scope
        };
        // Among several entries for one device, the smallest applies; across devices, the largest
        // of these applies.
        let mut smallest: BTreeMap<Option<u32>, u32> = BTreeMap::new();
        for limit in self.0.iter().filter(applies) {
            let count = smallest.entry(limit.device).or_insert(limit.count);
            *count = limit.count.min(*count);
        }
        Some(smallest.into_values().max().map_or(0, u64::from))
    }

    /// Checks that a requirement doesn't exceed the resource's limit.
    pub(super) fn check(&self, resource: &Resource, required: u64) -> Result<(), Status> {
        let Some(limit) = self.limit_of(resource).filter(|limit| *limit < required) else {
            return Ok(());
        };
        Err(Status::invalid_argument(format!(
            "Resource count for \"{}\" is limited to {limit} which will prevent scheduling of one \
             or more model instances, the minimum required count is {required}",
            resource.name
        )))
    }
}
