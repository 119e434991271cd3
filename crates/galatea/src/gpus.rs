//! GPUs that the server may use, with their pools and limits.
//!
//! Without GPUs, this module has no effect: nothing is loaded, logged or shown.

use std::sync::Arc;

use galatea_config::{ComputeCapability, SupportedFeatures};
use galatea_devices::{DeviceLogLevel, DeviceLogMessage, DeviceSearchResult, Devices};
use galatea_dispatch::GpuMemoryCheck;
use galatea_infer::Status;
use galatea_telemetry::Logger;

use crate::environment::Environment;
use crate::flags::Settings;

/// Finds the GPUs that models may use.
pub(crate) fn find(settings: &Settings, environment: &Environment) -> DeviceSearchResult {
    if environment.cpu_only {
        return DeviceSearchResult::default();
    }
    Devices::discover(settings.gpus.minimum())
}

/// Allocates the pools before models are loaded.
pub(crate) fn prepare(devices: &Devices, settings: &Settings, logger: &Logger) {
    log(&devices.allocate_pools(&settings.gpus.pools), logger);
    if settings.gpus.peer_access {
        log(&devices.enable_peer_access(), logger);
    }
    devices.limit_growable_buffers(&settings.gpus.growing_bytes);
}

/// Logs the device notes.
pub(crate) fn log(notes: &[DeviceLogMessage], logger: &Logger) {
    for DeviceLogMessage { level, text } in notes {
        match level {
            DeviceLogLevel::Info => logger.info(text),
            DeviceLogLevel::Warning => logger.warning(text),
            DeviceLogLevel::Error => logger.error(text),
        }
    }
}

/// The features that configurations may request on a server with these devices.
pub(crate) fn support(devices: &Devices, settings: &Settings) -> SupportedFeatures {
    let mut support = SupportedFeatures::default();
    if devices.is_empty() {
        return support;
    }
    support.gpus = devices.numbers();
    support.min_compute_capability = settings.gpus.minimum();
    for device in devices.iter() {
        let info = device.info();
        let (Ok(number), (major, minor)) = (i32::try_from(info.number), info.capability) else {
            continue;
        };
        support.compute_capabilities.insert(number, ComputeCapability { major, minor });
    }
    support
}

/// Refuses instances on GPUs whose memory use exceeds the limit.
pub(crate) fn memory_check(devices: &Devices, settings: &Settings) -> Option<GpuMemoryCheck> {
    if devices.is_empty() {
        return None;
    }
    let (devices, limits) = (devices.clone(), settings.gpus.load_limits.clone());
    Some(Arc::new(move |instance, gpu| {
        let number = i32::try_from(gpu).unwrap_or(i32::MAX);
        let memory = devices.device(number).and_then(galatea_devices::Device::memory_use);
        let memory = memory.map_err(|error| {
            Status::internal(format!("unable to get memory info for device {gpu}: {error}"))
        })?;
        let part = limits.get(&number).copied().unwrap_or(1.0);
        if memory.total - memory.free > part_of(memory.total, part) {
            return Err(Status::unavailable(format!(
                "can not create model '{instance}': memory limit set for GPU {gpu} has exceeded, \
                 model loading is rejected."
            )));
        }
        Ok(())
    }))
}

#[allow(
    clippy::cast_precision_loss,
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "a part from 0 to 1 of a memory far below 2^53 bytes"
)]
fn part_of(bytes: usize, part: f64) -> usize {
    (bytes as f64 * part) as usize
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_part_is_rounded_down() {
        assert_eq!([0.0, 0.5, 1.0].map(|part| part_of(1_001, part)), [0, 500, 1_001]);
    }

    #[test]
    fn a_server_without_gpus_supports_what_it_did() {
        let (devices, settings) = (Devices::default(), Settings::default());
        assert_eq!(support(&devices, &settings), SupportedFeatures::default());
        assert!(memory_check(&devices, &settings).is_none());
    }
}
