//! The state of models that are loaded on demand, for metrics, the index and the memory report.

use std::fmt::Write as _;

use galatea_control::{ModelState, RepositoryEntry};
use galatea_policy::{MemoryByPool, MemoryPoolId, RefusalReason, ResidencyState, ResidencyStatus};

use super::Demand;
use super::memory::GpuMemory;
use crate::registry::UNLOADED;

/// The reason for a refusal, as a metric's label.
#[derive(Copy, Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) struct RefusalLabel(&'static str);

impl RefusalLabel {
    pub(super) const fn of(reason: &RefusalReason) -> Self {
        Self(match reason {
            RefusalReason::UnknownModel(_) => "unknown_model",
            RefusalReason::UnloadedByClient(_) => "unloaded_by_client",
            RefusalReason::OverBudget { .. } => "over_budget",
            RefusalReason::TooManyWaitingForModel => "too_many_waiting_for_model",
            RefusalReason::TooManyWaiting => "too_many_waiting",
            RefusalReason::TooLate => "too_late",
            RefusalReason::DeadlineExceeded => "deadline_exceeded",
            RefusalReason::LoadFailed(_) => "load_failed",
            RefusalReason::WouldDeadlock => "would_deadlock",
        })
    }

    /// The label's value.
    #[must_use]
    pub(super) const fn name(self) -> &'static str {
        self.0
    }
}

/// The memory of models that are loaded on demand, and the counts since the server's start.
#[derive(Clone, Debug)]
pub struct ModelMemoryReading {
    /// The maximum memory of all models together, in bytes.
    pub limit_bytes: u64,
    /// The memory of all models that are resident, being loaded or being unloaded, in bytes.
    pub used_bytes: u64,
    /// The memory of each model that is in memory, in bytes.
    pub models: Vec<(String, u64)>,
    /// The memory of the GPUs with a limit.
    pub gpus: Vec<GpuMemoryReading>,
    /// The number of loads that began.
    pub loads: u64,
    /// The number of loads that failed.
    pub failed_loads: u64,
    /// The number of models that were unloaded.
    pub unloads: u64,
    /// The number of requests that now wait for a model.
    pub waiting: u64,
    /// The numbers of refused requests by reason.
    pub refusals: Vec<(&'static str, u64)>,
}

/// The memory of models on a GPU.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct GpuMemoryReading {
    /// The GPU's unique identifier.
    pub uuid: String,
    /// The maximum memory of all models together, in bytes.
    pub limit_bytes: u64,
    /// The memory of all models that are resident, being loaded or being unloaded, in bytes.
    pub used_bytes: u64,
    /// The memory of each model that is in memory and has memory there, in bytes.
    pub models: Vec<(String, u64)>,
}

impl Demand {
    /// Reads the memory and the counts.
    pub(crate) fn reading(&self) -> ModelMemoryReading {
        let state = self.state.lock("read the memory of models");
        let in_memory = state.residency.status().filter(|status| is_in_memory(status.state));
        let in_memory: Vec<ResidencyStatus> = in_memory.collect();
        let models = in_memory.iter();
        let models = models.map(|status| (status.model.to_string(), host_bytes(status)));
        ModelMemoryReading {
            limit_bytes: state.residency.settings().budget.limit(MemoryPoolId::HOST).unwrap_or(0),
            used_bytes: state.residency.used().of(MemoryPoolId::HOST),
            models: models.collect(),
            gpus: self.gpu_readings(state.residency.used(), &in_memory),
            loads: state.counts.loads,
            failed_loads: state.counts.failed_loads,
            unloads: state.counts.unloads,
            waiting: state.waiting64(),
            refusals: state
                .counts
                .refusals
                .iter()
                .map(|(label, count)| (label.name(), *count))
                .collect(),
        }
    }

    fn gpu_readings(
        &self,
        used: &MemoryByPool,
        in_memory: &[ResidencyStatus],
    ) -> Vec<GpuMemoryReading> {
        let reading = |(gpu, memory): (&u16, &GpuMemory)| {
            let pool = MemoryPoolId::gpu(*gpu);
            let models = in_memory.iter().filter(|status| status.bytes.of(pool) > 0);
            GpuMemoryReading {
                uuid: memory.uuid.clone(),
                limit_bytes: memory.limit_bytes,
                used_bytes: used.of(pool),
                models: models
                    .map(|status| (status.model.to_string(), status.bytes.of(pool)))
                    .collect(),
            }
        };
        self.options.gpus.iter().map(reading).collect()
    }

    /// The memory report of a model, as JSON, if the model is known.
    pub(crate) fn report_json(&self, model: &str) -> Option<String> {
        let state = self.state.lock("report the memory of a model");
        let status = state.residency.status().find(|status| *status.model == *model)?;
        let now = self.now();
        let mut text = String::from("{\"model\":");
        write_string(&mut text, model);
        let _ = write!(
            text,
            ",\"state\":\"{}\",\"bytes\":{},\"measured\":{},\"load_time_ns\":{},\"in_use\":{},\
             \"waiting\":{},\"pinned\":{},\"unloaded_by_client\":{},",
            state_name(status.state),
            host_bytes(&status),
            state.sizes.is_measured(model),
            status.load_ns,
            status.uses > 0,
            status.waiting,
            status.is_pinned,
            status.is_unloaded_by_client,
        );
        match status.ready_at {
            Some(at) => {
                let _ = write!(text, "\"ready_in_ns\":{},", at.saturating_since(now));
            }
            None => text.push_str("\"ready_in_ns\":null,"),
        }
        text.push_str("\"last_error\":");
        match state.errors.get(model) {
            Some(error) => write_string(&mut text, error.message().trim_end()),
            None => text.push_str("null"),
        }
        let limit = state.residency.settings().budget.limit(MemoryPoolId::HOST).unwrap_or(0);
        let used = state.residency.used().of(MemoryPoolId::HOST);
        let _ = write!(text, ",\"all_models\":{{\"used_bytes\":{used},\"limit_bytes\":{limit}}}");
        self.write_gpus(&mut text, &status, state.residency.used());
        text.push('}');
        Some(text)
    }

    /// Appends the memory of the GPUs with a limit, if there are any.
    fn write_gpus(&self, text: &mut String, status: &ResidencyStatus, used: &MemoryByPool) {
        if self.options.gpus.is_empty() {
            return;
        }
        text.push_str(",\"gpus\":[");
        for (index, (gpu, memory)) in self.options.gpus.iter().enumerate() {
            let (pool, separator) = (MemoryPoolId::gpu(*gpu), if index > 0 { "," } else { "" });
            let _ = write!(
                text,
                "{separator}{{\"gpu\":{gpu},\"bytes\":{},\"used_bytes\":{},\"limit_bytes\":{}}}",
                status.bytes.of(pool),
                used.of(pool),
                memory.limit_bytes,
            );
        }
        text.push(']');
    }

    /// Gives the index the states of models that are loaded on demand and aren't resident.
    pub(crate) fn describe_index(&self, entries: &mut [RepositoryEntry]) {
        let state = self.state.lock("describe the index");
        for entry in entries {
            let is_out = match entry.state {
                None => true,
                Some(ModelState::Unavailable) => entry.reason == UNLOADED,
                Some(_) => false,
            };
            let is_blocked = state.unloaded_by_client.contains(entry.name.as_str());
            if !is_out || is_blocked || state.residency.state(&entry.name).is_none() {
                continue;
            }
            entry.state = Some(ModelState::Unavailable);
            entry.reason = match state.errors.get(entry.name.as_str()) {
                Some(error) => {
                    let error = error.message().trim_end();
                    format!("not resident: loaded on demand; the last load failed: {error}")
                }
                None => String::from("not resident: loaded on demand"),
            };
        }
    }
}

const fn is_in_memory(state: ResidencyState) -> bool {
    match state {
        ResidencyState::Loading
        | ResidencyState::Resident
        | ResidencyState::Draining
        | ResidencyState::Unloading => true,
        ResidencyState::Absent | ResidencyState::Reserved => false,
    }
}

const fn state_name(state: ResidencyState) -> &'static str {
    match state {
        ResidencyState::Absent => "not_resident",
        ResidencyState::Reserved => "waiting_to_load",
        ResidencyState::Loading => "loading",
        ResidencyState::Resident => "resident",
        ResidencyState::Draining => "draining",
        ResidencyState::Unloading => "unloading",
    }
}

fn host_bytes(status: &ResidencyStatus) -> u64 {
    status.bytes.of(MemoryPoolId::HOST)
}

/// Appends a JSON string.
fn write_string(text: &mut String, value: &str) {
    text.push('"');
    for character in value.chars() {
        match character {
            '"' | '\\' => {
                text.push('\\');
                text.push(character);
            }
            character if character.is_control() => {
                let _ = write!(text, "\\u{:04x}", u32::from(character));
            }
            character => text.push(character),
        }
    }
    text.push('"');
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn strings_are_escaped() {
        let mut text = String::new();
        write_string(&mut text, "a \"b\"\\\n\u{1f}ü");
        assert_eq!(text, "\"a \\\"b\\\"\\\\\\u000a\\u001fü\"");
    }
}
