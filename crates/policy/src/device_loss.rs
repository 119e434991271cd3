//! Removal of a model's instances when a device is lost.
//!
//! A device that has failed once is never used again. Its instances fail the requests that they
//! have and are removed, and waiting requests go to the remaining instances. If none remain, some
//! instance must keep failing requests, which would otherwise wait forever; the model is then not
//! ready.
//!
//! The plan depends only on the instances and the lost devices. Losing a device twice, losing two
//! devices in either order, and losing a device while instances change are therefore all handled in
//! the same way. The surrounding protocol is described in `dispatch/version/gpu_loss.rs`.

use std::collections::BTreeSet;

use crate::ids::InstanceId;

/// The plan for the instances of a model.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DeviceLossPlan {
    /// Instances that fail every batch from now on, including those that are removed.
    pub failing: Vec<InstanceId>,
    /// Instances that are removed.
    pub leaving: Vec<InstanceId>,
    /// True if an instance that can execute remains.
    pub is_usable: bool,
}

impl DeviceLossPlan {
    /// Creates the plan for the loss of these devices. Each instance is listed with its device
    /// number, if it has one.
    #[must_use]
    pub fn new(instances: &[(InstanceId, Option<u32>)], lost: &BTreeSet<u32>) -> Self {
        let is_lost = |device: &Option<u32>| device.is_some_and(|device| lost.contains(&device));
        let failing = instances.iter().filter(|(_, device)| is_lost(device));
        let failing: Vec<InstanceId> = failing.map(|(instance, _)| *instance).collect();
        // A model without any instances had none before the loss either.
        let is_usable = failing.is_empty() || failing.len() < instances.len();
        let leaving = if is_usable { failing.clone() } else { Vec::new() };
        Self { failing, leaving, is_usable }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Instances by device: `-` means none, and a digit is a GPU.
    fn check(devices: &str, lost: &[u32], failing: &[u32], leaving: &[u32], is_usable: bool) {
        let devices = devices.chars().map(|device| device.to_digit(10));
        let instances: Vec<_> = (0..).map(InstanceId).zip(devices).collect();
        let plan = DeviceLossPlan::new(&instances, &lost.iter().copied().collect());
        let ids = |ids: &[u32]| ids.iter().copied().map(InstanceId).collect();
        let expected = DeviceLossPlan { failing: ids(failing), leaving: ids(leaving), is_usable };
        assert_eq!(plan, expected, "{lost:?}");
    }

    #[test]
    // row: INST-13
    fn instances_of_a_lost_device_leave_if_others_are_left() {
        check("0011", &[1], &[2, 3], &[2, 3], true);
        check("0011", &[2], &[], &[], true);
        check("-01", &[0, 1], &[1, 2], &[1, 2], true);
        check("01", &[0, 1], &[0, 1], &[], false);
        check("0", &[0], &[0], &[], false);
        check("--", &[0], &[], &[], true);
        check("", &[0], &[], &[], true);
    }

    /// Covers every placement of up to four instances on two devices or on no device, and every
    /// order of losses: a waiting request is either served or refused, and only healthy instances
    /// serve.
    #[test]
    fn a_request_never_waits_for_a_lost_device() {
        for count in 1..=4 {
            for placement in 0..3_u32.pow(count) {
                let device = |index: u32| (placement / 3_u32.pow(index) % 3).checked_sub(1);
                let all: Vec<_> = (0..count).map(|at| (InstanceId(at), device(at))).collect();
                for order in [[0, 1], [1, 0]] {
                    let mut left = all.clone();
                    let mut lost = BTreeSet::new();
                    for device in order {
                        lost.insert(device);
                        let plan = DeviceLossPlan::new(&left, &lost);
                        left.retain(|(instance, _)| !plan.leaving.contains(instance));
                        assert!(!left.is_empty(), "somebody answers");
                        let healthy = |(id, _): &(InstanceId, _)| !plan.failing.contains(id);
                        assert_eq!(left.iter().any(healthy), plan.is_usable);
                        assert!(left.iter().all(healthy) || !plan.is_usable);
                        let again = DeviceLossPlan::new(&left, &lost);
                        assert!(again.leaving.is_empty(), "a second report changes nothing");
                    }
                    let expected = all.iter().any(|(_, device)| device.is_none());
                    assert_eq!(DeviceLossPlan::new(&left, &lost).is_usable, expected);
                }
            }
        }
    }
}
