//! GPU usage, for the frames.

use galatea_devices::{Device, DeviceMeasurement, Devices};
use serde_json::{Value, json};

/// Measures all GPUs. A GPU that can't be measured or has been lost gets no row.
pub(crate) fn rows(devices: &Devices) -> Value {
    let measured = devices.iter().filter_map(|device| {
        let reading = devices.measure(device)?.ok()?;
        Some(row(device, &reading))
    });
    measured.collect()
}

/// Encodes the values of a GPU. Values that can't be measured are null.
fn row(device: &Device, reading: &DeviceMeasurement) -> Value {
    let memory = reading.memory_used_and_total.as_ref().ok();
    let milliwatts = |power: &Result<u32, _>| power.as_ref().ok().copied();
    json!({
        "number": device.number(),
        "name": device.info().name,
        "utilization_percent": reading.utilization_percent.as_ref().ok(),
        "memory_used": memory.map(|(used, _)| used),
        "memory_total": memory.map(|(_, total)| total),
        "power_mw": milliwatts(&reading.power_usage_milliwatts),
        "power_limit_mw": milliwatts(&reading.power_limit_milliwatts),
    })
}
