//! GPU metrics, as the measuring library reports them.

use std::time::{Duration, Instant};

use galatea_devices::{Device, DeviceMeasurement, Devices, MeasurementError};

use super::text::{Labels, MetricKind};
use super::{Exposition, Number};
use crate::Logger;

/// The number of consecutive failures after which a reading is abandoned, as in Triton.
const FAILURES_MAX: u32 = 3;

const BYTES_PER_MEBIBYTE: u64 = 1 << 20;

/// The gauges of all GPUs that models may use.
#[derive(Debug)]
pub(super) struct GpuGauges {
    devices: Devices,
    gpus: Vec<(Device, Gauges)>,
    read_at: Instant,
}

/// The values shown for a GPU.
#[derive(Debug, Default, PartialEq)]
struct Gauges {
    /// True if the device has disappeared, which ends its series.
    is_lost: bool,
    utilization: f64,
    memory_bytes_total: u64,
    memory_bytes_used: u64,
    power_watts: f64,
    power_watts_max: f64,
    energy_joules: f64,
    /// The last reading of the device's energy counter, in millijoules.
    energy_before: Option<u64>,
    failures: Failures,
}

/// The number of consecutive failures of each reading.
#[derive(Debug, Default, PartialEq)]
struct Failures {
    utilization: u32,
    memory: u32,
    power: u32,
    power_max: u32,
    energy: u32,
}

impl GpuGauges {
    /// Makes gauges with a first reading. A GPU that can't be measured at all is left out.
    pub(super) fn new(devices: Devices, now: Instant, logger: Option<&Logger>) -> Self {
        let measured = devices.iter().filter(|device| devices.measure(device).is_some());
        let gpus = measured.map(|device| (device.clone(), Gauges::default())).collect();
        let mut gauges = Self { devices, gpus, read_at: now };
        gauges.read(now, logger);
        gauges
    }

    /// The number and name of each GPU.
    pub(super) fn names(&self) -> impl Iterator<Item = (u32, &str)> {
        self.gpus.iter().map(|(device, _)| (device.number(), device.info().name.as_str()))
    }

    /// Reads again if the last reading is older than `interval`.
    pub(super) fn refresh(&mut self, now: Instant, interval: Duration, logger: Option<&Logger>) {
        if now.saturating_duration_since(self.read_at) >= interval {
            self.read(now, logger);
        }
    }

    /// Reads all gauges again.
    pub(super) fn read(&mut self, now: Instant, logger: Option<&Logger>) {
        self.read_at = now;
        for (device, gauges) in &mut self.gpus {
            if gauges.is_lost {
                continue;
            }
            let Some(reading) = self.devices.measure(device) else { continue };
            let warnings = gauges.take(device.number(), reading);
            let Some(logger) = logger else { continue };
            warnings.iter().for_each(|warning| logger.warning(warning));
        }
    }

    pub(super) fn render(&self, text: &mut Exposition) {
        let shown: Vec<(Labels, &Gauges)> = self
            .gpus
            .iter()
            .filter(|(_, gauges)| !gauges.is_lost)
            .map(|(device, gauges)| {
                let uuid = (String::from("gpu_uuid"), device.info().uuid.clone());
                (Labels::new(vec![uuid]), gauges)
            })
            .collect();
        render(text, &shown);
    }
}

impl Gauges {
    /// Stores a reading and returns descriptions of its missing parts.
    fn take(
        &mut self,
        number: u32,
        reading: Result<DeviceMeasurement, MeasurementError>,
    ) -> Vec<String> {
        let reading = match reading {
            Ok(reading) if !is_lost(&reading) => reading,
            Ok(_) => return self.lose(number),
            Err(error) if error.lost => return self.lose(number),
            Err(error) => {
                // The values are kept, and each reading counts as failed.
                let failures = &mut self.failures;
                let counts = [
                    &mut failures.utilization,
                    &mut failures.memory,
                    &mut failures.power,
                    &mut failures.power_max,
                    &mut failures.energy,
                ];
                let mut is_new = false;
                for count in counts {
                    is_new |= *count < FAILURES_MAX;
                    *count = count.saturating_add(1);
                }
                let warning = format!("Unable to get field values for GPU ID {number}: {error}");
                return if is_new { vec![warning] } else { Vec::new() };
            }
        };
        let failures = &mut self.failures;
        let mut warnings = Vec::new();
        let mut missing = |what: &str, error: &MeasurementError| {
            warnings.push(format!("Unable to get {what} for GPU {number}. Status:{error}"));
        };
        let limit = reading.power_limit_milliwatts;
        if let Some(limit) = judge(limit, &mut failures.power_max, "power limit", &mut missing) {
            self.power_watts_max = f64::from(limit) / 1_000.0;
        }
        let usage = reading.power_usage_milliwatts;
        if let Some(usage) = judge(usage, &mut failures.power, "power usage", &mut missing) {
            self.power_watts = f64::from(usage) / 1_000.0;
        }
        let energy = reading.energy_millijoules;
        let energy = energy.map(Some);
        if let Some(Some(energy)) =
            judge(energy, &mut failures.energy, "energy consumption", &mut missing)
        {
            let before = self.energy_before.replace(energy).unwrap_or(energy);
            self.energy_joules += thousandths(energy.saturating_sub(before));
        }
        let utilization = reading.utilization_percent;
        if let Some(percent) =
            judge(utilization, &mut failures.utilization, "GPU utilization", &mut missing)
        {
            self.utilization = f64::from(percent) * 0.01;
        }
        let memory = reading.memory_used_and_total;
        if let Some((used, total)) =
            judge(memory, &mut failures.memory, "memory usage", &mut missing)
        {
            // Triton's readings are in mebibytes.
            self.memory_bytes_used = used - used % BYTES_PER_MEBIBYTE;
            self.memory_bytes_total = total - total % BYTES_PER_MEBIBYTE;
        }
        warnings
    }

    fn lose(&mut self, number: u32) -> Vec<String> {
        self.is_lost = true;
        vec![format!("GPU {number} is lost. Its metrics are removed")]
    }
}

/// Returns true if the library reports that the device has disappeared.
fn is_lost(reading: &DeviceMeasurement) -> bool {
    let utilization = reading.utilization_percent.as_ref().err();
    let memory = reading.memory_used_and_total.as_ref().err();
    utilization.into_iter().chain(memory).any(|error| error.lost)
}

/// The value to show: the reading, or 0 as in Triton; `None` after too many failures.
fn judge<T: Default>(
    read: Result<T, MeasurementError>,
    failures: &mut u32,
    what: &str,
    missing: &mut dyn FnMut(&str, &MeasurementError),
) -> Option<T> {
    if *failures >= FAILURES_MAX {
        return None;
    }
    match read {
        Ok(value) => {
            *failures = 0;
            Some(value)
        }
        Err(error) => {
            *failures += 1;
            missing(what, &error);
            Some(T::default())
        }
    }
}

#[allow(clippy::cast_precision_loss, reason = "an energy far below 2^53 millijoules")]
fn thousandths(count: u64) -> f64 {
    count as f64 * 0.001
}

fn render(text: &mut Exposition, shown: &[(Labels, &Gauges)]) {
    let mut family = |name: &str, help: &str, kind, value: &dyn Fn(&Gauges) -> String| {
        let series = shown.iter().map(|(labels, gauges)| (labels.clone(), value(gauges)));
        text.family(name, help, kind, series);
    };
    let number = |value: f64| Number(value).to_string();
    family(
        "nv_gpu_utilization",
        "GPU utilization rate [0.0 - 1.0)",
        MetricKind::Gauge,
        &|gauges| number(gauges.utilization),
    );
    family(
        "nv_gpu_memory_total_bytes",
        "GPU total memory, in bytes",
        MetricKind::Gauge,
        &|gauges| gauges.memory_bytes_total.to_string(),
    );
    family("nv_gpu_memory_used_bytes", "GPU used memory, in bytes", MetricKind::Gauge, &|gauges| {
        gauges.memory_bytes_used.to_string()
    });
    family("nv_gpu_power_usage", "GPU power usage in watts", MetricKind::Gauge, &|gauges| {
        number(gauges.power_watts)
    });
    family(
        "nv_gpu_power_limit",
        "GPU power management limit in watts",
        MetricKind::Gauge,
        &|gauges| number(gauges.power_watts_max),
    );
    family(
        "nv_energy_consumption",
        "GPU energy consumption in joules since the Triton Server started",
        MetricKind::Counter,
        &|gauges| number(gauges.energy_joules),
    );
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reading(millijoules: u64) -> DeviceMeasurement {
        DeviceMeasurement {
            utilization_percent: Ok(25),
            memory_used_and_total: Ok((3 << 20, (8 << 20) + 5)),
            power_usage_milliwatts: Ok(61_500),
            power_limit_milliwatts: Ok(300_000),
            energy_millijoules: Ok(millijoules),
        }
    }

    fn error(lost: bool, text: &str) -> MeasurementError {
        MeasurementError { lost, text: text.to_owned() }
    }

    fn lines(gauges: &Gauges) -> Vec<String> {
        let labels = Labels::new(vec![(String::from("gpu_uuid"), String::from("GPU-0"))]);
        let mut text = Exposition::default();
        render(&mut text, &[(labels, gauges)]);
        let text = text.into_text();
        text.lines().filter(|line| !line.starts_with('#')).map(str::to_owned).collect()
    }

    #[test]
    // row: MET-12
    fn a_reading_is_shown_in_triton_s_units() {
        let mut gauges = Gauges::default();
        assert_eq!(gauges.take(0, Ok(reading(1_000_000))), [""; 0]);
        assert_eq!(gauges.take(0, Ok(reading(1_001_500))), [""; 0]);
        let expected = [
            "nv_gpu_utilization{gpu_uuid=\"GPU-0\"} 0.25",
            "nv_gpu_memory_total_bytes{gpu_uuid=\"GPU-0\"} 8388608",
            "nv_gpu_memory_used_bytes{gpu_uuid=\"GPU-0\"} 3145728",
            "nv_gpu_power_usage{gpu_uuid=\"GPU-0\"} 61.5",
            "nv_gpu_power_limit{gpu_uuid=\"GPU-0\"} 300",
            "nv_energy_consumption{gpu_uuid=\"GPU-0\"} 1.5",
        ];
        assert_eq!(lines(&gauges), expected);
    }

    #[test]
    fn what_fails_thrice_is_not_read_again() {
        let mut gauges = Gauges::default();
        gauges.take(1, Ok(reading(0)));
        let broken = || DeviceMeasurement {
            power_usage_milliwatts: Err(error(false, "Not Supported")),
            ..reading(0)
        };
        let warning = "Unable to get power usage for GPU 1. Status:Not Supported";
        assert_eq!(gauges.take(1, Ok(broken())), [warning]);
        assert_eq!((gauges.power_watts, gauges.power_watts_max), (0.0, 300.0));
        // A success resets the count.
        gauges.take(1, Ok(reading(0)));
        for _ in 0..3 {
            assert_eq!(gauges.take(1, Ok(broken())), [warning]);
        }
        assert_eq!(gauges.take(1, Ok(broken())), [""; 0]);
        gauges.take(1, Ok(reading(0)));
        assert_eq!(gauges.power_watts, 0.0);
    }

    #[test]
    fn a_device_that_can_t_be_read_keeps_its_values() {
        let mut gauges = Gauges::default();
        gauges.take(0, Ok(reading(0)));
        let before = lines(&gauges);
        let warning = "Unable to get field values for GPU ID 0: Unknown Error";
        for _ in 0..3 {
            let warnings = gauges.take(0, Err(error(false, "Unknown Error")));
            assert_eq!((warnings, lines(&gauges)), (vec![warning.to_owned()], before.clone()));
        }
        assert_eq!(gauges.take(0, Err(error(false, "Unknown Error"))), [""; 0]);
    }

    #[test]
    fn a_lost_device_is_told_of_once() {
        let lost = || error(true, "GPU is lost");
        for reading in
            [Err(lost()), Ok(DeviceMeasurement { utilization_percent: Err(lost()), ..reading(0) })]
        {
            let mut gauges = Gauges::default();
            assert_eq!(gauges.take(3, reading), ["GPU 3 is lost. Its metrics are removed"]);
            assert!(gauges.is_lost);
        }
    }
}
