//! Flags for memory and devices.

use galatea_dispatch::HostPolicySetting;

use super::flag::{Flag, no_default};
use super::value::{self, InvalidValue};
use super::{Group, Settings};
use crate::memory::MemoryLimit;

pub(super) const GROUP: Group = Group {
    title: "Memory/Device Management",
    flags: &[&[
        Flag::other(
            "memory-limit",
            "bytes",
            no_default,
            "How much memory requests and responses may hold together, in bytes or with a unit: \
             512M, 16G. A request that would exceed it is refused at once (HTTP 503, gRPC \
             RESOURCE_EXHAUSTED). 0 or none is no limit. Default: three quarters of the memory of \
             the machine or of the control group, or of what --model-memory leaves of it.",
            memory_limit,
        ),
        Flag::other(
            "pinned-memory-pool-byte-size",
            "integer",
            |settings| settings.gpus.pools.pinned.to_string(),
            "Bytes of pinned memory for copies to and from GPUs. Without GPUs nothing is pinned.",
            pinned_memory_pool_byte_size,
        ),
        Flag::other(
            "cuda-memory-pool-byte-size",
            "integer:integer",
            no_default,
            "GPU:BYTES for a pool of GPU memory; 0 bytes for none. Default: 64 MiB for each GPU. \
             No effect without GPUs.",
            |settings, value| {
                let (gpu, bytes) = gpu_and_bytes(value)?;
                settings.gpus.pools.devices.insert(gpu, bytes);
                settings.no_effect_without_gpus("cuda-memory-pool-byte-size");
                Ok(())
            },
        ),
        Flag::other(
            "cuda-virtual-address-size",
            "integer:integer",
            no_default,
            "GPU:BYTES of addresses for each growing state of a sequence. Default: 1 GiB for \
             each GPU. No effect without GPUs.",
            |settings, value| {
                let (gpu, bytes) = gpu_and_bytes(value)?;
                settings.gpus.growing_bytes.insert(gpu, bytes);
                settings.no_effect_without_gpus("cuda-virtual-address-size");
                Ok(())
            },
        ),
        Flag::other(
            "min-supported-compute-capability",
            "float",
            |settings| settings.gpus.minimum().to_string(),
            "GPUs below this compute capability are left alone. No effect without GPUs.",
            |settings, value| {
                settings.gpus.min_compute_capability = Some(value::fraction(value)?);
                settings.no_effect_without_gpus("min-supported-compute-capability");
                Ok(())
            },
        ),
        Flag::other(
            "buffer-manager-thread-count",
            "integer",
            |_| String::from("0"),
            "Threads that copy tensors in parallel in Triton. Checked alone: a batch is gathered \
             by the thread that executes it.",
            |_, value| value::number::<i32>(value).map(|_| ()),
        ),
        Flag::other(
            "host-policy",
            "string,string=string",
            no_default,
            "A setting of a host policy, as POLICY,SETTING=VALUE. The setting 'cpu-cores' binds \
             the threads of the policy's instances to processors, given as ranges like 0-3,8-11; \
             'numa-node' takes their memory from one node. Instance groups name their policy as \
             host_policy; without a name it is cpu or model, as their kind is.",
            host_policy,
        ),
        Flag::other(
            "model-load-gpu-limit",
            "integer:fraction",
            no_default,
            "GPU:FRACTION of a GPU's memory above which no model is loaded onto it. No effect \
             without GPUs.",
            model_load_gpu_limit,
        ),
    ]],
};

fn gpu_and_bytes(value: &str) -> Result<(i32, u64), InvalidValue> {
    let (gpu, bytes) = value::numbers(value, ':')?;
    let gpu = value::number::<i32>(gpu)?;
    // Triton treats a negative size as a very large one.
    let size = bytes.trim_ascii_start();
    let bytes = match size.strip_prefix('-') {
        Some(size) => value::number::<u64>(size)?.wrapping_neg(),
        None => value::number::<u64>(bytes)?,
    };
    Ok((gpu, bytes))
}

fn memory_limit(settings: &mut Settings, value: &str) -> Result<(), InvalidValue> {
    settings.memory_limit = match value {
        "none" => MemoryLimit::Off,
        value => match value::byte_size(value)? {
            0 => MemoryLimit::Off,
            bytes => MemoryLimit::Bytes(bytes),
        },
    };
    Ok(())
}

fn pinned_memory_pool_byte_size(settings: &mut Settings, value: &str) -> Result<(), InvalidValue> {
    // Triton treats a negative size as 0.
    let bytes: i64 = value::number(value)?;
    settings.gpus.pools.pinned = u64::try_from(bytes).unwrap_or(0);
    settings.note_without_gpus(
        "'--pinned-memory-pool-byte-size' is only shown: nothing is pinned without GPUs",
    );
    Ok(())
}

fn host_policy(settings: &mut Settings, value: &str) -> Result<(), InvalidValue> {
    let [policy, setting, value] = value::setting(value).ok_or_else(|| {
        InvalidValue(format!(
            "--host-policy option format is '<policy name>,<setting>=<value>'. Got {value}\n"
        ))
    })?;
    match HostPolicySetting::by_name(setting) {
        Some(setting) => settings.host_policies.set(policy, setting, value),
        None => settings.reject(format!(
            "setting host policy: Unsupported - Unsupported host policy setting '{setting}' \
             is specified, supported settings are 'numa-node', 'cpu-cores'"
        )),
    }
    Ok(())
}

fn model_load_gpu_limit(settings: &mut Settings, value: &str) -> Result<(), InvalidValue> {
    let (gpu, fraction) = value::numbers(value, ':')?;
    let gpu: i32 = value::number(gpu)?;
    let fraction = value::fraction(fraction)?;
    let wrong = if gpu < 0 {
        Some(format!("expects device ID >= 0, got {gpu}"))
    } else if !(0.0..=1.0).contains(&fraction) && !fraction.is_nan() {
        Some(format!("expects limit fraction to be in range [0.0, 1.0], got {fraction:.6}"))
    } else {
        None
    };
    if let Some(wrong) = wrong {
        settings.reject(format!("setting model load GPU limit: Invalid argument - {wrong}"));
        return Ok(());
    }
    settings.gpus.load_limits.insert(gpu, fraction);
    settings.no_effect_without_gpus("model-load-gpu-limit");
    Ok(())
}
