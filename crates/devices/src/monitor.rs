//! Measurements from NVIDIA's management library.

use std::ffi::{CString, c_char, c_int, c_uint, c_ulonglong, c_void};

use crate::driver::functions;

/// The library's result codes.
const SUCCESS: c_int = 0;
const LOST: c_int = 15;

functions! {
    /// The functions of `libnvidia-ml.so.1`.
    Library from "libnvidia-ml.so.1" {
        nvmlInit_v2();
        nvmlShutdown();
        nvmlDeviceGetHandleByPciBusId_v2(bus_id: *const c_char, device: *mut *mut c_void);
        nvmlDeviceGetUtilizationRates(device: *mut c_void, rates: *mut [c_uint; 2]);
        nvmlDeviceGetMemoryInfo(device: *mut c_void, total_free_used: *mut [c_ulonglong; 3]);
        nvmlDeviceGetPowerUsage(device: *mut c_void, milliwatts: *mut c_uint);
        nvmlDeviceGetPowerManagementLimit(device: *mut c_void, milliwatts: *mut c_uint);
        nvmlDeviceGetTotalEnergyConsumption(device: *mut c_void, millijoules: *mut c_ulonglong);
    }
}

/// The reason why a value couldn't be measured.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{text}")]
pub struct MeasurementError {
    /// True if the device has been lost.
    pub lost: bool,
    /// The library's message.
    pub text: String,
}

/// The measurements of one device.
#[derive(Clone, Debug, PartialEq)]
pub struct DeviceMeasurement {
    /// The percentage of time during which the device was computing.
    pub utilization_percent: Result<u32, MeasurementError>,
    /// The number of bytes of device memory in use and the total number of bytes.
    pub memory_used_and_total: Result<(u64, u64), MeasurementError>,
    /// The device's power draw in milliwatts.
    pub power_usage_milliwatts: Result<u32, MeasurementError>,
    /// The device's power limit in milliwatts.
    pub power_limit_milliwatts: Result<u32, MeasurementError>,
    /// The device's energy consumption since the driver was loaded, in millijoules.
    pub energy_millijoules: Result<u64, MeasurementError>,
}

impl DeviceMeasurement {
    /// The error that indicates that the device has been lost, if any.
    pub(crate) fn error_of_lost(&self) -> Option<&MeasurementError> {
        let utilization = self.utilization_percent.as_ref().err();
        let memory = self.memory_used_and_total.as_ref().err();
        utilization.into_iter().chain(memory).find(|error| error.lost)
    }
}

/// The initialized library.
pub(crate) struct DeviceMonitor(Library);

impl DeviceMonitor {
    /// Loads the library. Returns `None` if the machine doesn't have it.
    pub(crate) fn load() -> Result<Option<Self>, String> {
        let Some(library) = Library::load()? else { return Ok(None) };
        // SAFETY: The function takes no arguments.
        let code = unsafe { library.nvmlInit_v2() };
        if code != SUCCESS {
            return Err(format!("nvmlInit: error {code}"));
        }
        Ok(Some(Self(library)))
    }

    /// Measures the device with this PCI bus ID.
    pub(crate) fn read(&self, bus_id: &str) -> Result<DeviceMeasurement, MeasurementError> {
        let library = &self.0;
        let bus_id = CString::new(bus_id).unwrap_or_default();
        let mut device = std::ptr::null_mut();
        // SAFETY: The string is NUL-terminated, and the pointer refers to a local.
        let code =
            unsafe { library.nvmlDeviceGetHandleByPciBusId_v2(bus_id.as_ptr(), &raw mut device) };
        check(code)?;
        let (mut rates, mut memory) = ([0; 2], [0; 3]);
        let (mut usage, mut limit, mut energy) = (0, 0, 0);
        // SAFETY: Every pointer refers to a local of the type that the function writes, and the
        // device came from the library.
        let (utilization, memories, usages, limits, energies) = unsafe {
            (
                library.nvmlDeviceGetUtilizationRates(device, &raw mut rates),
                library.nvmlDeviceGetMemoryInfo(device, &raw mut memory),
                library.nvmlDeviceGetPowerUsage(device, &raw mut usage),
                library.nvmlDeviceGetPowerManagementLimit(device, &raw mut limit),
                library.nvmlDeviceGetTotalEnergyConsumption(device, &raw mut energy),
            )
        };
        let [total, _, used] = memory;
        Ok(DeviceMeasurement {
            utilization_percent: check(utilization).map(|()| rates[0]),
            memory_used_and_total: check(memories).map(|()| (used, total)),
            power_usage_milliwatts: check(usages).map(|()| usage),
            power_limit_milliwatts: check(limits).map(|()| limit),
            energy_millijoules: check(energies).map(|()| energy),
        })
    }
}

impl Drop for DeviceMonitor {
    fn drop(&mut self) {
        // SAFETY: The library was initialized once, and nothing uses it any more.
        let _ = unsafe { self.0.nvmlShutdown() };
    }
}

fn check(code: c_int) -> Result<(), MeasurementError> {
    if code == SUCCESS {
        return Ok(());
    }
    let text = match code {
        3 => "Not Supported".to_owned(),
        4 => "Insufficient Permissions".to_owned(),
        6 => "Not Found".to_owned(),
        LOST => "GPU is lost".to_owned(),
        code => format!("error {code}"),
    };
    Err(MeasurementError { lost: code == LOST, text })
}
