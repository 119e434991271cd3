//! Trace settings: those in force for each model, and the effects of changes.
//!
//! A field that is not set for a model follows the global settings; an unset global field follows
//! the initial settings. The rules and error messages are Triton's.

use std::collections::BTreeMap;
use std::sync::Arc;

use galatea_control::{FieldChange, TraceLevels, TraceSettingsChange};
use galatea_infer::Status;

use crate::sampler::Sampler;

/// The maximum number of models with their own trace settings, far more than one server loads. The
/// settings are kept when a model is unloaded.
const TRACED_MODELS_MAX: usize = 4096;

/// The values of the settings.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct TraceSettingValues {
    /// The kinds of facts to trace.
    pub levels: TraceLevels,
    /// The sampling rate: one in this many requests is traced; 0 means only requests whose clients
    /// ask for it.
    pub rate: u32,
    /// The number of requests left to trace; -1 means unlimited.
    pub count: i32,
    /// The number of traces per file; 0 means all in one file.
    pub log_frequency: u32,
}

impl Default for TraceSettingValues {
    fn default() -> Self {
        Self { levels: TraceLevels::default(), rate: 1000, count: -1, log_frequency: 0 }
    }
}

/// The fields that are set explicitly rather than inherited.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
struct SetFields {
    levels: bool,
    rate: bool,
    count: bool,
    log_frequency: bool,
}

impl SetFields {
    fn is_none(self) -> bool {
        self == Self::default()
    }
}

/// The destination of traces, to the extent that it affects the validity of settings.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(crate) enum Destination {
    /// Files with a name.
    Files,
    /// Files, but without a name.
    NoFiles,
    /// A collector.
    Collector,
}

/// Settings in force. A change replaces the settings as a whole, so a request in progress keeps the
/// settings that it began with.
#[derive(Debug)]
pub(crate) struct TraceSettings {
    /// A unique number that is never reused.
    pub(crate) number: u64,
    pub(crate) levels: TraceLevels,
    pub(crate) log_frequency: u32,
    /// The selection of requests to trace.
    pub(crate) sampler: Sampler,
    set: SetFields,
    invalid: Option<&'static str>,
    on_end: Option<SettingsUnusedHandler>,
}

/// A handler that is called with the settings' number once the settings are no longer used.
#[derive(Clone)]
pub(crate) struct SettingsUnusedHandler(pub(crate) Arc<dyn Fn(u64) + Send + Sync>);

impl std::fmt::Debug for SettingsUnusedHandler {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("SettingsUnusedHandler")
    }
}

impl Drop for TraceSettings {
    fn drop(&mut self) {
        if let Some(SettingsUnusedHandler(on_end)) = &self.on_end {
            on_end(self.number);
        }
    }
}

impl TraceSettings {
    fn new(
        number: u64,
        fields: TraceSettingValues,
        set: SetFields,
        destination: Destination,
    ) -> Self {
        let invalid = if fields.levels.is_off() {
            Some("tracing is disabled")
        } else if fields.rate == 0 {
            Some("sample rate must be non-zero")
        } else if destination == Destination::NoFiles {
            Some("trace file name is not given")
        } else {
            None
        };
        let TraceSettingValues { levels, rate, count, log_frequency } = fields;
        let sampler = Sampler::new(rate, count);
        Self { number, levels, log_frequency, sampler, set, invalid, on_end: None }
    }

    /// The values, with the remaining count.
    pub(crate) fn fields(&self) -> TraceSettingValues {
        TraceSettingValues {
            levels: self.levels,
            rate: self.sampler.rate(),
            count: self.sampler.remaining_traces(),
            log_frequency: self.log_frequency,
        }
    }

    /// Returns true if the next request is traced, which is always the case if `forced`.
    pub(crate) fn is_next_traced(&self, forced: bool) -> bool {
        self.sampler.is_next_traced(self.invalid.is_none(), forced)
    }

    /// Returns true if these settings allow any request to be traced.
    fn may_trace(&self, destination: Destination) -> bool {
        !self.levels.is_off() && (self.invalid.is_none() || destination == Destination::Collector)
    }
}

/// All settings.
#[derive(Clone, Debug)]
pub(crate) struct SettingsTable {
    start: TraceSettingValues,
    destination: Destination,
    global: Arc<TraceSettings>,
    models: BTreeMap<String, Arc<TraceSettings>>,
    next_number: u64,
    on_end: Option<SettingsUnusedHandler>,
}

impl SettingsTable {
    /// A table with the initial settings. If those are invalid, nothing is traced.
    pub(crate) fn new(
        start: TraceSettingValues,
        destination: Destination,
        on_end: Option<SettingsUnusedHandler>,
    ) -> Self {
        let mut global = TraceSettings::new(0, start, SetFields::default(), destination);
        global.on_end.clone_from(&on_end);
        let (global, models) = (Arc::new(global), BTreeMap::new());
        Self { start, destination, global, models, next_number: 1, on_end }
    }

    /// The settings for a model.
    pub(crate) fn settings_of(&self, model: Option<&str>) -> &Arc<TraceSettings> {
        model.and_then(|model| self.models.get(model)).unwrap_or(&self.global)
    }

    /// Returns true if any request may be traced.
    pub(crate) fn may_trace(&self) -> bool {
        let mut all = self.models.values().chain([&self.global]);
        all.any(|setting| setting.may_trace(self.destination))
    }

    /// Changes the settings of one model or of all models.
    ///
    /// As in Triton, models that inherit changed global settings are checked one after another, and
    /// the first model whose settings become invalid stops the change.
    pub(crate) fn change(
        &mut self,
        model: Option<&str>,
        change: &TraceSettingsChange,
    ) -> Result<(), Status> {
        let Some(model) = model.filter(|model| !model.is_empty()) else {
            self.global = self.changed(Some(&self.global.clone()), self.start, change)?;
            for model in self.models.keys().cloned().collect::<Vec<_>>() {
                self.change_model(&model, &TraceSettingsChange::default())?;
            }
            return Ok(());
        };
        self.change_model(model, change)
    }

    fn change_model(&mut self, model: &str, change: &TraceSettingsChange) -> Result<(), Status> {
        let current = self.models.get(model).cloned();
        if set_fields(current.as_deref(), change).is_none() {
            self.models.remove(model);
            return Ok(());
        }
        if current.is_none() && self.models.len() >= TRACED_MODELS_MAX {
            let most = TRACED_MODELS_MAX;
            let text = format!("at most {most} models can have trace settings of their own");
            return Err(Status::invalid_argument(text));
        }
        let setting = self.changed(current.as_ref(), self.global.fields(), change)?;
        self.models.insert(model.to_owned(), setting);
        Ok(())
    }

    fn changed(
        &mut self,
        current: Option<&Arc<TraceSettings>>,
        fallback: TraceSettingValues,
        change: &TraceSettingsChange,
    ) -> Result<Arc<TraceSettings>, Status> {
        let known = current.map(|setting| (setting.fields(), setting.set));
        let kept = |is_set: fn(SetFields) -> bool| {
            known.filter(|(_, set)| is_set(*set)).map(|(fields, _)| fields)
        };
        let fields = TraceSettingValues {
            levels: field(change.levels, kept(|set| set.levels).map(|f| f.levels), fallback.levels),
            rate: field(change.rate, kept(|set| set.rate).map(|f| f.rate), fallback.rate),
            count: field(change.count, kept(|set| set.count).map(|f| f.count), fallback.count),
            log_frequency: field(
                change.log_frequency,
                kept(|set| set.log_frequency).map(|f| f.log_frequency),
                fallback.log_frequency,
            ),
        };
        let set = set_fields(current.map(|setting| &**setting), change);
        let mut setting = TraceSettings::new(self.next_number, fields, set, self.destination);
        let is_valid = setting.invalid.is_none() && fields.count != 0;
        // Settings that trace nothing are always allowed.
        if !is_valid && !fields.levels.is_off() {
            let reason = setting.invalid.unwrap_or_default();
            return Err(Status::invalid_argument(format!(
                "Attempting to set invalid trace setting :{reason}"
            )));
        }
        setting.on_end.clone_from(&self.on_end);
        self.next_number = self.next_number.wrapping_add(1);
        Ok(Arc::new(setting))
    }
}

/// The value of a field after a change. `kept` is the previously set value, if any.
fn field<T>(change: FieldChange<T>, kept: Option<T>, fallback: T) -> T {
    match change {
        FieldChange::Set(value) => value,
        FieldChange::Keep => kept.unwrap_or(fallback),
        FieldChange::Clear => fallback,
    }
}

/// The fields that are set after a change.
fn set_fields(current: Option<&TraceSettings>, change: &TraceSettingsChange) -> SetFields {
    let before = current.map(|setting| setting.set).unwrap_or_default();
    SetFields {
        levels: is_set(before.levels, change.levels),
        rate: is_set(before.rate, change.rate),
        count: is_set(before.count, change.count),
        log_frequency: is_set(before.log_frequency, change.log_frequency),
    }
}

fn is_set<T>(before: bool, change: FieldChange<T>) -> bool {
    match change {
        FieldChange::Keep => before,
        FieldChange::Clear => false,
        FieldChange::Set(_) => true,
    }
}

#[cfg(test)]
#[path = "settings_tests.rs"]
mod tests;
