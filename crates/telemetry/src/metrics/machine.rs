//! Metrics for the machine's processors and memory, as the kernel reports them.

use std::io;
use std::time::{Duration, Instant};

use super::{Exposition, Number};

const BYTES_PER_KIBIBYTE: u64 = 1_024;

/// The source of the readings.
pub(super) trait Readings {
    /// The text of `/proc/stat`.
    fn stat(&self) -> io::Result<String>;
    /// The text of `/proc/meminfo`.
    fn meminfo(&self) -> io::Result<String>;
}

/// The kernel's procfs files.
pub(super) struct Procfs;

impl Readings for Procfs {
    fn stat(&self) -> io::Result<String> {
        std::fs::read_to_string("/proc/stat")
    }

    fn meminfo(&self) -> io::Result<String> {
        std::fs::read_to_string("/proc/meminfo")
    }
}

/// The ticks that all processors have spent since the machine started.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
struct ProcessorTicks {
    busy: u64,
    idle: u64,
}

impl ProcessorTicks {
    /// Reads the first line: `cpu user nice system idle iowait irq softirq steal`, followed by
    /// newer columns.
    fn parse(stat: &str) -> Option<Self> {
        let columns = stat.lines().next()?.strip_prefix("cpu ")?.split_whitespace();
        let ticks: Vec<u64> = columns.take(8).map(str::parse).collect::<Result<_, _>>().ok()?;
        let &[user, nice, system, idle, iowait, irq, softirq, steal] = ticks.as_slice() else {
            return None;
        };
        let sum = |parts: &[u64]| parts.iter().fold(0_u64, |all, part| all.saturating_add(*part));
        Some(Self {
            busy: sum(&[user, nice, system, irq, softirq, steal]),
            idle: sum(&[idle, iowait]),
        })
    }

    /// The fraction of busy time since `earlier`, from 0 to 1.
    fn utilization_since(self, earlier: Self) -> f64 {
        let busy = self.busy.saturating_sub(earlier.busy);
        let idle = self.idle.saturating_sub(earlier.idle);
        match busy.saturating_add(idle) {
            0 => 0.0,
            all => ratio(busy, all),
        }
    }
}

#[allow(clippy::cast_precision_loss, reason = "differences of ticks are far below 2^53")]
fn ratio(part: u64, all: u64) -> f64 {
    part as f64 / all as f64
}

#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
struct MachineMemory {
    total_bytes: u64,
    used_bytes: u64,
}

impl MachineMemory {
    /// Parses memory use. Used memory is the total minus the memory that the kernel reports as
    /// available.
    fn parse(meminfo: &str) -> Option<Self> {
        let bytes = |name: &str| {
            let line = meminfo.lines().find_map(|line| line.strip_prefix(name))?;
            let kibibytes: u64 = line.split_whitespace().next()?.parse().ok()?;
            kibibytes.checked_mul(BYTES_PER_KIBIBYTE)
        };
        let total_bytes = bytes("MemTotal:")?;
        let used_bytes = total_bytes.checked_sub(bytes("MemAvailable:")?)?;
        Some(Self { total_bytes, used_bytes })
    }
}

/// The gauges, and the reading from which they were computed.
#[derive(Debug)]
pub(super) struct MachineGauges {
    read_at: Instant,
    ticks: ProcessorTicks,
    utilization: f64,
    memory: MachineMemory,
}

impl MachineGauges {
    /// Makes gauges with a first reading; utilisation needs a second one.
    pub(super) fn new(readings: &dyn Readings, now: Instant) -> Self {
        let mut gauges = Self {
            read_at: now,
            ticks: ProcessorTicks::default(),
            utilization: 0.0,
            memory: MachineMemory::default(),
        };
        gauges.read(readings, now);
        gauges.utilization = 0.0;
        gauges
    }

    /// Reads again if the last reading is older than `interval`.
    pub(super) fn refresh(&mut self, readings: &dyn Readings, now: Instant, interval: Duration) {
        if now.saturating_duration_since(self.read_at) >= interval {
            self.read(readings, now);
        }
    }

    /// Reads all gauges. As in Triton, values that can't be read are shown as 0.
    pub(super) fn read(&mut self, readings: &dyn Readings, now: Instant) {
        let ticks = readings.stat().ok().and_then(|text| ProcessorTicks::parse(&text));
        self.utilization = ticks.map_or(0.0, |ticks| ticks.utilization_since(self.ticks));
        self.ticks = ticks.unwrap_or(self.ticks);
        let memory = readings.meminfo().ok().and_then(|text| MachineMemory::parse(&text));
        self.memory = memory.unwrap_or_default();
        self.read_at = now;
    }

    pub(super) fn render(&self, text: &mut Exposition) {
        text.single(
            "nv_cpu_utilization",
            "CPU utilization rate [0.0 - 1.0]",
            Number(self.utilization),
        );
        text.single(
            "nv_cpu_memory_total_bytes",
            "CPU total memory (RAM), in bytes",
            self.memory.total_bytes,
        );
        text.single(
            "nv_cpu_memory_used_bytes",
            "CPU used memory (RAM), in bytes",
            self.memory.used_bytes,
        );
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    struct Fixed {
        busy: Cell<u64>,
        idle: Cell<u64>,
    }

    impl Readings for Fixed {
        fn stat(&self) -> io::Result<String> {
            let (busy, idle) = (self.busy.get(), self.idle.get());
            Ok(format!("cpu  {busy} 0 0 {idle} 0 0 0 0 5 5\ncpu0 1 1 1 1 1 1 1 1\n"))
        }

        fn meminfo(&self) -> io::Result<String> {
            Ok(String::from("MemTotal: 1000 kB\nMemFree: 1 kB\nMemAvailable:  600 kB\n"))
        }
    }

    fn text(gauges: &MachineGauges) -> Vec<String> {
        let mut text = Exposition::default();
        gauges.render(&mut text);
        let lines = text.into_text();
        lines.lines().filter(|line| !line.starts_with('#')).map(str::to_owned).collect()
    }

    #[test]
    fn utilisation_is_the_busy_share_between_two_readings() {
        let machine = Fixed { busy: Cell::new(100), idle: Cell::new(100) };
        let start = Instant::now();
        let interval = Duration::from_secs(2);
        let mut gauges = MachineGauges::new(&machine, start);
        assert_eq!(text(&gauges)[0], "nv_cpu_utilization 0");
        machine.busy.set(125);
        machine.idle.set(175);
        gauges.refresh(&machine, start + Duration::from_secs(1), interval);
        assert_eq!(text(&gauges)[0], "nv_cpu_utilization 0");
        gauges.refresh(&machine, start + interval, interval);
        let expected = [
            "nv_cpu_utilization 0.25",
            "nv_cpu_memory_total_bytes 1024000",
            "nv_cpu_memory_used_bytes 409600",
        ];
        assert_eq!(text(&gauges), expected);
    }

    #[test]
    fn malformed_readings_are_ignored() {
        assert_eq!(ProcessorTicks::parse(""), None);
        assert_eq!(ProcessorTicks::parse("cpu 1 2 3\n"), None);
        assert_eq!(ProcessorTicks::parse("cpu a b c d e f g h\n"), None);
        assert_eq!(MachineMemory::parse("MemTotal: 1 kB\n"), None);
        assert_eq!(MachineMemory::parse("MemTotal: 1 kB\nMemAvailable: 2 kB\n"), None);
    }

    #[test]
    // row: MET-11
    fn this_machine_can_be_read() {
        assert!(ProcessorTicks::parse(&Procfs.stat().unwrap()).is_some());
        assert!(MachineMemory::parse(&Procfs.meminfo().unwrap()).is_some());
    }
}
