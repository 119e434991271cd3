//! Memory usage that backends report for their models and instances.

use std::collections::BTreeMap;

use galatea_abi::{
    TRITONSERVER_BufferAttributes, TRITONSERVER_MEMORY_CPU, TRITONSERVER_MEMORY_CPU_PINNED,
    TRITONSERVER_MEMORY_GPU,
};
use galatea_c_objects::buffer_attributes::BufferAttributesObject;
use galatea_c_objects::{handle, pointer};
use galatea_infer::{MemoryUsage, MemoryUsageKind, Status};
use galatea_stdx::{Lock, len64};

/// Sizes in bytes, keyed by memory kind and device number.
type Sizes = BTreeMap<(MemoryUsageKind, i64), u64>;

/// The latest report for a model or an instance.
#[derive(Default)]
pub(crate) struct MemoryReport(Lock<Sizes>);

impl MemoryReport {
    /// Replaces the previous report. As in Triton, if a memory is listed more than once, its last
    /// size counts.
    ///
    /// # Safety
    ///
    /// Same requirements as for every exported function.
    pub(crate) unsafe fn replace(
        &self,
        usage: *mut *mut TRITONSERVER_BufferAttributes,
        usage_size: u32,
    ) -> Result<(), Status> {
        let count = usize::try_from(usage_size)
            .map_err(|_| Status::invalid_argument("usage_size is too large"))?;
        let mut sizes = Sizes::new();
        // SAFETY: the caller guarantees `usage_size` objects.
        for &one in unsafe { pointer::slice(usage.cast_const(), count, "usage")? } {
            // SAFETY: as above.
            let one: &BufferAttributesObject = unsafe { handle::borrow(one, "usage")? };
            let kind = match one.memory_type {
                TRITONSERVER_MEMORY_CPU => MemoryUsageKind::Cpu,
                TRITONSERVER_MEMORY_CPU_PINNED => MemoryUsageKind::CpuPinned,
                TRITONSERVER_MEMORY_GPU => MemoryUsageKind::Gpu,
                other => {
                    return Err(Status::invalid_argument(format!(
                        "no memory has type {}",
                        other.0
                    )));
                }
            };
            let byte_size = len64(one.byte_size);
            sizes.insert((kind, one.memory_type_id), byte_size);
        }
        *self.0.lock("replace a report") = sizes;
        Ok(())
    }
}

/// The total memory usage of a model and its instances.
#[derive(Default)]
pub(crate) struct MemoryTotal(Sizes);

impl MemoryTotal {
    pub(crate) fn add(&mut self, report: &MemoryReport) {
        for (memory, byte_size) in &*report.0.lock("add up reports") {
            let sum = self.0.entry(*memory).or_default();
            *sum = sum.saturating_add(*byte_size);
        }
    }

    pub(crate) fn into_usage(self) -> Vec<MemoryUsage> {
        let sizes = self.0.into_iter();
        sizes.map(|((kind, id), byte_size)| MemoryUsage { kind, id, byte_size }).collect()
    }
}

#[cfg(test)]
mod tests {
    use galatea_abi::TRITONSERVER_MemoryType;

    use super::*;
    use crate::owned::Owned;

    fn replace(
        report: &MemoryReport,
        parts: &[(TRITONSERVER_MemoryType, i64, usize)],
    ) -> Result<(), Status> {
        let attributes = parts.iter().map(|&(memory_type, memory_type_id, byte_size)| {
            Owned::new(BufferAttributesObject {
                memory_type,
                memory_type_id,
                byte_size,
                ..BufferAttributesObject::default()
            })
        });
        let attributes: Vec<_> = attributes.collect();
        let mut addresses: Vec<_> = attributes.iter().map(Owned::address).collect();
        let count = u32::try_from(addresses.len()).unwrap();
        // SAFETY: the objects live until the function returns.
        unsafe { report.replace(addresses.as_mut_ptr(), count) }
    }

    fn total(of: &[&MemoryReport]) -> Vec<(MemoryUsageKind, i64, u64)> {
        let mut total = MemoryTotal::default();
        of.iter().for_each(|one| total.add(one));
        let usage = total.into_usage().into_iter();
        usage.map(|usage| (usage.kind, usage.id, usage.byte_size)).collect()
    }

    #[test]
    fn reports_are_replaced_and_summed() {
        let (model, instance) = (MemoryReport::default(), MemoryReport::default());
        assert_eq!(total(&[&model, &instance]), []);
        replace(&model, &[(TRITONSERVER_MEMORY_GPU, 1, 7), (TRITONSERVER_MEMORY_CPU, 0, 5)])
            .unwrap();
        let twice = [(TRITONSERVER_MEMORY_CPU, 0, 1), (TRITONSERVER_MEMORY_CPU, 0, 2)];
        replace(&instance, &twice).unwrap();
        let both = [(MemoryUsageKind::Cpu, 0, 7), (MemoryUsageKind::Gpu, 1, 7)];
        assert_eq!(total(&[&model, &instance]), both);
        let message = replace(&model, &[(TRITONSERVER_MemoryType(9), 0, 1)]).unwrap_err();
        assert_eq!(message.message(), "no memory has type 9");
        assert_eq!(total(&[&model, &instance]), both);
        replace(&model, &[(TRITONSERVER_MEMORY_CPU_PINNED, -3, usize::MAX)]).unwrap();
        let twice = [&model, &model];
        assert_eq!(total(&twice), [(MemoryUsageKind::CpuPinned, -3, u64::MAX)]);
        replace(&model, &[]).unwrap();
        assert_eq!(total(&[&model]), []);
    }
}
