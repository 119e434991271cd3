//! What a version does when GPUs are lost: the driver of [`DeviceLossPlan`].

use std::collections::BTreeMap;

use galatea_backend::LogLevel;
use galatea_infer::Status;
use galatea_policy::{DeviceLossPlan, InstanceId};

use super::LoadedModel;

/// Why each lost GPU is lost, by its number.
pub type LostGpus = BTreeMap<u32, String>;

impl LoadedModel {
    /// Takes the instances on a GPU out of service: what they execute fails, and so does what
    /// they are given meanwhile. Requests that wait go to the other instances. Without others
    /// the version isn't ready any more, and refuses every request.
    ///
    /// Not for the thread of an instance, which this may wait for.
    pub fn lose_gpu(&self, gpu: u32, reason: &str) {
        let mut lost = self.lost_gpus.lock("lose a GPU");
        let is_new = lost.insert(gpu, String::from(reason)).is_none();
        let lost = lost.clone();
        let plan = self.settle_losses(&lost);
        if is_new && !plan.failing.is_empty() {
            let (count, leaving) = (plan.failing.len(), plan.leaving.len());
            let line = format_args!(
                "'{}' version {}: GPU {gpu} is lost ({reason}): {count} instances are on lost GPUs, \
                 {leaving} of them are removed{}",
                self.id,
                self.version,
                if plan.is_usable { "" } else { ", and none is left: the model isn't ready" },
            );
            self.host.log.write(LogLevel::Error, line);
        }
    }

    /// The same for GPUs that were lost before the instances changed.
    pub(crate) fn apply_earlier_losses(&self) {
        let lost = self.lost_gpus.lock("look at lost GPUs").clone();
        if !lost.is_empty() {
            self.settle_losses(&lost);
        }
    }

    fn settle_losses(&self, lost: &LostGpus) -> DeviceLossPlan {
        let mut instances = self.instances.lock("plan a loss");
        let devices: Vec<(InstanceId, Option<u32>)> =
            instances.iter().map(|(instance, key)| (*instance, key.gpu())).collect();
        let plan = DeviceLossPlan::new(&devices, &lost.keys().copied().collect());
        instances.retain(|(instance, _)| !plan.leaving.contains(instance));
        drop(instances);
        for (instance, gpu) in devices {
            if let Some(why) = gpu.and_then(|gpu| Some((gpu, lost.get(&gpu)?))) {
                self.dispatcher.lose_lanes(&[instance], &self.gpu_is_lost(why.0, why.1));
            }
        }
        self.dispatcher.remove_lanes(&plan.leaving);
        plan
    }

    /// Whether an instance is left that can execute.
    ///
    /// # Errors
    ///
    /// Which GPU is lost, and why.
    pub(super) fn check_gpus(&self) -> Result<(), Status> {
        let lost = self.lost_gpus.lock("look at lost GPUs").clone();
        if lost.is_empty() {
            return Ok(());
        }
        let instances = self.instances.lock("look for an instance");
        let gpus = instances.iter().map(|(_, key)| key.gpu().filter(|gpu| lost.contains_key(gpu)));
        let first = gpus.collect::<Option<Vec<u32>>>().and_then(|gpus| gpus.first().copied());
        match first.and_then(|gpu| Some((gpu, lost.get(&gpu)?))) {
            Some((gpu, reason)) => Err(self.gpu_is_lost(gpu, reason)),
            None => Ok(()),
        }
    }

    fn gpu_is_lost(&self, gpu: u32, reason: &str) -> Status {
        Status::unavailable(format!(
            "GPU {gpu}, which executed requests to model '{}', is lost: {reason}",
            self.name
        ))
    }
}
