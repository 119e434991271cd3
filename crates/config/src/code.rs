//! References to code in a configuration.

use crate::{BATCH_STRATEGY, ConfigDraft};

/// The parameters that name libraries for OpenVINO models, with their fields.
const OPENVINO_LIBRARIES: [(&str, &str); 2] = [
    ("CPU_EXTENSION_PATH", "parameters.CPU_EXTENSION_PATH"),
    ("OPENVINO_LIBRARY_PATH", "parameters.OPENVINO_LIBRARY_PATH"),
];

/// A reference to code in a configuration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExternalCodeReference {
    /// The field.
    pub field: &'static str,
    /// The field's value; for an agent or an accelerator, this includes the parameters.
    pub value: String,
}

impl ConfigDraft {
    /// All code that the configuration names, regardless of the backend: libraries, repository
    /// agents, and accelerators, whose options may name libraries.
    #[must_use]
    pub fn code_references(&self) -> Vec<ExternalCodeReference> {
        let message = self.message();
        let code = |field, value: String| ExternalCodeReference { field, value };
        let libraries = self.op_library_filenames().iter().cloned();
        let libraries = libraries.map(|name| code("model_operations.op_library_filename", name));
        let agents = self.repository_agents().into_iter();
        let agents = agents.map(|agent| {
            let parameters = shown(&agent.parameters);
            code("model_repository_agents", format!("{}{parameters}", agent.name))
        });
        let strategy = self.parameter(BATCH_STRATEGY).map(str::to_owned);
        let strategy = strategy.map(|path| code("parameters.TRITON_BATCH_STRATEGY_PATH", path));
        let openvino = OPENVINO_LIBRARIES.iter().filter_map(|&(parameter, field)| {
            let path = self.parameter(parameter).filter(|path| !path.is_empty())?;
            Some(code(field, path.to_owned()))
        });
        let usual = format!("libtriton_{}.so", message.backend);
        let runtime = Some(&message.runtime).filter(|name| !name.is_empty() && **name != usual);
        let runtime = runtime.map(|name| code("runtime", name.clone()));
        let accelerators = message.optimization.iter().flat_map(|one| &one.execution_accelerators);
        let accelerators = accelerators.flat_map(|both| {
            both.gpu_execution_accelerator.iter().chain(&both.cpu_execution_accelerator)
        });
        let accelerators = accelerators.map(|one| {
            let value = format!("{}{}", one.name, shown(&one.parameters));
            code("optimization.execution_accelerators", value)
        });
        libraries
            .chain(agents)
            .chain(strategy)
            .chain(openvino)
            .chain(runtime)
            .chain(accelerators)
            .collect()
    }
}

fn shown<K: std::fmt::Display, V: std::fmt::Display>(
    parameters: impl IntoIterator<Item = (K, V)>,
) -> String {
    let mut pairs: Vec<String> =
        parameters.into_iter().map(|(key, value)| format!(" {key}={value}")).collect();
    pairs.sort_unstable();
    pairs.concat()
}

#[cfg(test)]
mod tests {
    use crate::testing::read_config;

    #[test]
    fn all_code_is_found() {
        let text = "backend: 'x' runtime: 'other.so' model_operations { op_library_filename: 'a.so' } \
            model_repository_agents { agents { name: 'sum' parameters { key: 'k' value: 'v' } } } \
            parameters { key: 'TRITON_BATCH_STRATEGY_PATH' value { string_value: 'b.so' } } \
            parameters { key: 'CPU_EXTENSION_PATH' value { string_value: 'c.so' } } \
            parameters { key: 'OPENVINO_LIBRARY_PATH' value { string_value: 'd.so' } } \
            optimization { execution_accelerators { \
            gpu_execution_accelerator { name: 'tensorrt' parameters { key: 'p' value: '1' } } \
            cpu_execution_accelerator { name: 'openvino' } } }";
        let found = read_config("f", text).unwrap().code_references();
        let found: Vec<_> = found.iter().map(|one| (one.field, one.value.as_str())).collect();
        let expected = [
            ("model_operations.op_library_filename", "a.so"),
            ("model_repository_agents", "sum k=v"),
            ("parameters.TRITON_BATCH_STRATEGY_PATH", "b.so"),
            ("parameters.CPU_EXTENSION_PATH", "c.so"),
            ("parameters.OPENVINO_LIBRARY_PATH", "d.so"),
            ("runtime", "other.so"),
            ("optimization.execution_accelerators", "tensorrt p=1"),
            ("optimization.execution_accelerators", "openvino"),
        ];
        assert_eq!(found, expected);
        let usual = "backend: 'x' runtime: 'libtriton_x.so'";
        assert_eq!(read_config("f", usual).unwrap().code_references(), []);
    }
}
