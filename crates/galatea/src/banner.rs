//! The tables that are logged once the models are loaded.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

use galatea_control::{RepositoryEntry, ServerControl, ServerMetadata};
use galatea_devices::{Devices, PoolSizes};
use galatea_infer::AccessPass;
use galatea_telemetry::{Logger, TextTable};

use crate::backends::BackendInUse;
use crate::flags::Settings;

/// The components shown in the banner.
pub(crate) struct BannerContents<'a> {
    pub(crate) agents: &'a BTreeSet<(String, PathBuf)>,
    pub(crate) backends: &'a [BackendInUse],
    pub(crate) devices: &'a Devices,
    /// The number and name of each GPU that metrics show.
    pub(crate) measured_gpus: Vec<(u32, String)>,
}

/// Logs the repository agents and backends in use, the state of the models, and the server options.
pub(crate) fn log_summary(
    logger: &Logger,
    control: &dyn ServerControl,
    settings: &Settings,
    in_use: &BannerContents<'_>,
) {
    if !in_use.agents.is_empty() {
        logger.table(&agents_table(in_use.agents));
    }
    logger.table(&backends_table(in_use.backends));
    logger.table(&models(
        &control.repository_index(AccessPass::in_process(), false).unwrap_or_default(),
    ));
    for (number, name) in &in_use.measured_gpus {
        logger.info(format_args!("Collecting metrics for GPU {number}: {name}"));
    }
    let metadata = control.server_metadata(AccessPass::in_process());
    logger.table(&options(&metadata, settings, &in_use.devices.numbers()));
}

fn agents_table(agents: &BTreeSet<(String, PathBuf)>) -> TextTable {
    let mut table = TextTable::for_console(["Repository Agent", "Path"]);
    for (name, path) in agents {
        table.add_row([name.clone(), path.display().to_string()]);
    }
    table
}

fn backends_table(backends: &[BackendInUse]) -> TextTable {
    let mut table = TextTable::for_console(["Backend", "Path", "Config"]);
    for backend in backends {
        let path = match (&backend.library, backend.is_built_in) {
            (Some(library), false) => library.display().to_string(),
            (Some(library), true) => format!("built in, with {}", library.display()),
            (None, _) => String::from("built in"),
        };
        table.add_row([backend.name.clone(), path, backend.config.clone()]);
    }
    table
}

fn models(index: &[RepositoryEntry]) -> TextTable {
    let mut table = TextTable::for_console(["Model", "Version", "Status"]);
    for entry in index {
        let version = entry.version.map_or_else(|| String::from("-"), |number| number.to_string());
        if let Some(status) = status(entry) {
            table.add_row([entry.name.clone(), version, status]);
        }
    }
    table
}

/// The state of a model; `None` if no load of the model was requested.
fn status(entry: &RepositoryEntry) -> Option<String> {
    let state = entry.state?.name();
    Some(match (entry.version, entry.reason.as_str()) {
        (None, reason) => format!("Not loaded: {reason}"),
        (Some(_), "") => state.to_owned(),
        (Some(_), reason) => format!("{state}: {reason}"),
    })
}

/// The options, in Triton's order. Options that don't apply to this server are left out.
fn options(metadata: &ServerMetadata, settings: &Settings, gpus: &[i32]) -> TextTable {
    let mut table = TextTable::for_console(["Option", "Value"]);
    let number = |on: bool| String::from(if on { "1" } else { "0" });
    table.add_row(["server_id", &metadata.name]);
    table.add_row(["server_version", &metadata.version]);
    table.add_row(["server_extensions", &metadata.extensions.join(" ")]);
    for (index, path) in settings.model_repositories.iter().enumerate() {
        table.add_row([format!("model_repository_path[{index}]"), path.display().to_string()]);
    }
    let mode = settings.control_mode.name().to_ascii_uppercase();
    table.add_row(["model_control_mode", &format!("MODE_{mode}")]);
    for (index, name) in settings.startup_models.iter().enumerate() {
        table.add_row([format!("startup_models_{index}"), name.clone()]);
    }
    table.add_row(["strict_model_config", &number(!settings.auto_complete_config)]);
    table.add_row(["model_config_name", settings.model_config_name.as_deref().unwrap_or_default()]);
    table.add_row(["rate_limit", if settings.rate_limiting { "EXEC_COUNT" } else { "OFF" }]);
    table.add_row(["pinned_memory_pool_byte_size", &settings.gpus.pools.pinned.to_string()]);
    if !gpus.is_empty() {
        for (gpu, bytes) in pools(settings, gpus) {
            table.add_row([format!("cuda_memory_pool_byte_size{{{gpu}}}"), bytes.to_string()]);
        }
    }
    let capability = settings.gpus.shown_minimum(!gpus.is_empty(), 0.0);
    table.add_row(["min_supported_compute_capability", &format!("{capability:.1}")]);
    table.add_row(["strict_readiness", &number(settings.strict_readiness)]);
    table.add_row(["exit_timeout", &settings.exit_timeout_secs.to_string()]);
    table.add_row(["cache_enabled", &number(settings.cache.is_some())]);
    table
}

/// The memory pools that were configured, and the defaults for the other GPUs.
fn pools(settings: &Settings, gpus: &[i32]) -> BTreeMap<i32, u64> {
    let mut pools = settings.gpus.pools.devices.clone();
    for gpu in gpus {
        pools.entry(*gpu).or_insert(PoolSizes::DEVICE_DEFAULT);
    }
    pools
}

#[cfg(test)]
mod tests {
    use galatea_control::ModelState;

    use super::*;

    fn entry(
        name: &str,
        version: Option<i64>,
        state: Option<ModelState>,
        reason: &str,
    ) -> RepositoryEntry {
        RepositoryEntry { name: name.to_owned(), version, state, reason: reason.to_owned() }
    }

    #[test]
    fn models_show_their_state_and_its_reason() {
        let index = [
            entry("a", Some(1), Some(ModelState::Ready), ""),
            entry("b", Some(2), Some(ModelState::Unavailable), "Internal: no file"),
            entry("c", None, None, ""),
            entry("d", None, Some(ModelState::Unavailable), "wrong"),
        ];
        let table = models(&index);
        let expected = "\
+-------+---------+--------------------------------+
| Model | Version | Status                         |
+-------+---------+--------------------------------+
| a     | 1       | READY                          |
| b     | 2       | UNAVAILABLE: Internal: no file |
| d     | -       | Not loaded: wrong              |
+-------+---------+--------------------------------+
";
        assert_eq!(table.render(), expected);
    }

    #[test]
    fn backends_show_where_they_are_and_what_they_read() {
        let backend = |name: &str, library: Option<&str>, is_built_in| BackendInUse {
            name: name.to_owned(),
            library: library.map(PathBuf::from),
            is_built_in,
            config: String::from("{}"),
        };
        let table = backends_table(&[
            backend("a", None, true),
            backend("b", Some("/b/libb.so"), false),
            backend("c", Some("/c.so"), true),
        ]);
        let expected = "\
+---------+----------------------+--------+
| Backend | Path                 | Config |
+---------+----------------------+--------+
| a       | built in             | {}     |
| b       | /b/libb.so           | {}     |
| c       | built in, with /c.so | {}     |
+---------+----------------------+--------+
";
        assert_eq!(table.render(), expected);
    }

    #[test]
    // row: CLI-26
    fn options_are_listed_as_triton_lists_them() {
        let metadata = ServerMetadata {
            name: String::from("triton"),
            version: String::from("0.1.0"),
            extensions: vec!["a", "b"],
        };
        let settings = Settings {
            model_repositories: vec!["/m".into()],
            auto_complete_config: false,
            ..Settings::default()
        };
        let rendered = options(&metadata, &settings, &[]).render();
        let rows: Vec<Vec<&str>> = rendered
            .lines()
            .filter(|line| line.starts_with('|'))
            .map(|line| line.split('|').map(str::trim).filter(|cell| !cell.is_empty()).collect())
            .collect();
        let expected: [&[&str]; 14] = [
            &["Option", "Value"],
            &["server_id", "triton"],
            &["server_version", "0.1.0"],
            &["server_extensions", "a b"],
            &["model_repository_path[0]", "/m"],
            &["model_control_mode", "MODE_NONE"],
            &["strict_model_config", "1"],
            &["model_config_name"],
            &["rate_limit", "OFF"],
            &["pinned_memory_pool_byte_size", "268435456"],
            &["min_supported_compute_capability", "0.0"],
            &["strict_readiness", "1"],
            &["exit_timeout", "30"],
            &["cache_enabled", "0"],
        ];
        assert_eq!(rows, expected);
    }
}
