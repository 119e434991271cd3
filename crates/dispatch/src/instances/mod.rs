//! Creates a model's instances, warms them up, and puts them into lanes.
//!
//! **Warm before service.** An instance is created, executes its model's warmup samples, and
//! becomes a lane, in this order, on a thread bound by its host policy. If the model allows it,
//! several instances are created in parallel.

mod passive;
mod plan;
#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use galatea_backend::{Device, ExecutionPolicy, Instance, InstanceCreation, LogLevel, Model};
use galatea_config::ModelSpec;
use galatea_infer::Status;
use galatea_stdx::Lock;

pub(crate) use self::passive::{PassiveInstance, PassiveInstances};
pub(crate) use self::plan::{
    InstanceKey, PlannedInstance, distinct_requirements, planned_instances, undefined_policies,
};
use crate::LogSink;
use crate::host_policy::run_bound;
use crate::lane::Lane;
use crate::rate_limiter::ResourceRequirements;
use crate::statistics::GpuCounters;
use crate::warmup::InstanceWarmup;

/// The maximum number of a model's instances that are created in parallel. Creating an instance may
/// occupy a process and a processor for seconds, and a model may have hundreds of instances.
const PARALLEL_CREATIONS_MAX: usize = 16;

/// A check that a GPU can accommodate the instance just created on it. The arguments are the
/// instance name and the GPU number.
pub type GpuMemoryCheck = Arc<dyn Fn(&str, u32) -> Result<(), Status> + Send + Sync>;

/// The facts and tools needed to build a model's instances.
pub(crate) struct InstanceBuilder<'a> {
    pub(crate) spec: &'a ModelSpec,
    pub(crate) model: &'a dyn Model,
    pub(crate) policy: ExecutionPolicy,
    /// True if the server has a rate limiter.
    pub(crate) is_rate_limited: bool,
    /// True if every instance gets a thread, even if the backend doesn't need one.
    pub(crate) needs_threads: bool,
    /// Overrides the backend's declaration of whether instances are created in parallel.
    pub(crate) parallel_creation: Option<bool>,
    pub(crate) gpu_memory_check: Option<&'a GpuMemoryCheck>,
    pub(crate) gpu_counters: &'a GpuCounters,
    pub(crate) warmup: InstanceWarmup<'a>,
    pub(crate) log: &'a LogSink,
}

/// A model's instances.
pub(crate) struct BuiltInstances {
    pub(crate) lanes: Vec<Lane>,
    /// The keys of the lanes' instances, in the same order.
    pub(crate) keys: Vec<InstanceKey>,
    pub(crate) passive: Vec<PassiveInstance>,
}

type CreationResult = Result<Box<dyn Instance>, Status>;

impl InstanceBuilder<'_> {
    /// Builds either all planned instances or none.
    pub(crate) fn build(
        &self,
        planned: Vec<PlannedInstance<'_>>,
    ) -> Result<BuiltInstances, Status> {
        let is_limited =
            |one: &PlannedInstance<'_>| self.is_rate_limited && !one.requirements.is_empty();
        // Only threads can be bound to processors or wait for permits.
        let needs_thread = |one: &PlannedInstance<'_>| one.binding.is_some() || is_limited(one);
        let policy = if self.needs_threads || planned.iter().any(needs_thread) {
            ExecutionPolicy::Blocking
        } else {
            self.policy
        };
        let instances: Vec<Box<dyn Instance>> = match self.creation() {
            InstanceCreation::Parallel if planned.len() > 1 => self.create_in_parallel(&planned)?,
            InstanceCreation::Parallel | InstanceCreation::Sequential => {
                planned.iter().map(|one| self.create(one)).collect::<Result<_, _>>()?
            }
        };
        let mut built = BuiltInstances { lanes: Vec::new(), keys: Vec::new(), passive: Vec::new() };
        for (one, instance) in planned.into_iter().zip(instances) {
            let PlannedInstance { key, placement, is_passive, binding, requirements } = one;
            if is_passive {
                built.passive.push(PassiveInstance { key, _instance: instance });
                continue;
            }
            let gpu = key.gpu().and_then(|gpu| self.gpu_counters.counters_of(gpu));
            let lane = Lane::new(placement.name, instance, policy, self.log.clone());
            let lane = lane.with_counted_gpu(gpu);
            let requirements =
                if self.is_rate_limited { requirements } else { ResourceRequirements::default() };
            built.lanes.push(lane.with_binding(binding.cloned()).with_requirements(requirements));
            built.keys.push(key);
        }
        Ok(built)
    }

    fn creation(&self) -> InstanceCreation {
        match self.parallel_creation {
            Some(true) => InstanceCreation::Parallel,
            Some(false) => InstanceCreation::Sequential,
            None => self.model.instance_creation(),
        }
    }

    /// Creates instances on this and other threads. After a failure, no more creations are started.
    fn create_in_parallel(
        &self,
        planned: &[PlannedInstance<'_>],
    ) -> Result<Vec<Box<dyn Instance>>, Status> {
        let next = AtomicUsize::new(0);
        let has_failed = AtomicBool::new(false);
        let results: Vec<Lock<Option<CreationResult>>> =
            planned.iter().map(|_| Lock::default()).collect();
        let work = || {
            while !has_failed.load(Ordering::Relaxed) {
                let index = next.fetch_add(1, Ordering::Relaxed);
                let (Some(one), Some(result)) = (planned.get(index), results.get(index)) else {
                    break;
                };
                let created = self.create(one);
                if created.is_err() {
                    has_failed.store(true, Ordering::Relaxed);
                }
                *result.lock("keep the result") = Some(created);
            }
        };
        std::thread::scope(|scope| {
            for _ in 1..planned.len().min(PARALLEL_CREATIONS_MAX) {
                let thread = std::thread::Builder::new().name(String::from("galatea-instance"));
                // If the system refuses to start threads, the current one does all the work.
                let _ = thread.spawn_scoped(scope, work);
            }
            work();
        });
        results.into_iter().filter_map(Lock::into_inner).collect()
    }

    fn create(&self, planned: &PlannedInstance<'_>) -> CreationResult {
        let (placement, name) = (&planned.placement, &self.spec.name);
        let line = format_args!("creating instance '{}' of '{name}'", placement.name);
        self.log.write(LogLevel::Verbose(1), line);
        run_bound(planned.binding, || {
            let mut instance = self.model.create_instance(placement)?;
            if !planned.is_passive {
                self.warmup.run(instance.as_mut(), &placement.name)?;
            }
            // As in Triton, this is checked after the instance has allocated its memory: an earlier
            // check could let it use up all the remaining memory.
            if let (Device::Gpu(gpu), Some(check)) = (placement.device, self.gpu_memory_check) {
                check(&placement.name, gpu)?;
            }
            Ok(instance)
        })?
    }
}
