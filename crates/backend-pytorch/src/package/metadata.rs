//! The JSON files in a package.

use serde_json::Value;

/// The machine that a model was compiled for. Fields that are missing from the package are empty.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Metadata {
    /// The device, such as `cpu` or `cuda`.
    pub(crate) device: String,
    /// The CPU's instruction sets, such as `AVX512 AVX512_VNNI`.
    pub(crate) cpu_isa: String,
    /// The CPU's architecture, such as `x86_64`.
    pub(crate) machine: String,
    /// The operating system, such as `linux`.
    pub(crate) platform: String,
}

impl Metadata {
    /// Parses a package's metadata, a JSON object that contains strings.
    ///
    /// # Errors
    ///
    /// The reason why the text isn't such an object.
    pub(crate) fn parse(text: &str) -> Result<Self, String> {
        let value: Value = serde_json::from_str(text).map_err(|error| error.to_string())?;
        let object = value.as_object().ok_or("no object")?;
        let field = |key: &str| {
            let text = object.get(key).and_then(Value::as_str);
            text.unwrap_or_default().to_owned()
        };
        Ok(Self {
            device: field("AOTI_DEVICE_KEY"),
            cpu_isa: field("AOTI_CPU_ISA"),
            machine: field("AOTI_MACHINE"),
            platform: field("AOTI_PLATFORM"),
        })
    }

    /// The reason why the model can't run on a machine with this architecture and these CPU flags.
    pub(crate) fn refusal(&self, architecture: &str, cpuinfo: &str) -> Option<String> {
        if !self.device.is_empty() && self.device != "cpu" {
            return Some(format!(
                "it was compiled for '{}', and models of this backend run on the CPU: export it \
                 with the model and its samples on the CPU",
                self.device
            ));
        }
        if !self.platform.is_empty() && self.platform != "linux" {
            return Some(format!("it was compiled for the system '{}'", self.platform));
        }
        if !self.machine.is_empty() && self.machine != architecture {
            return Some(format!(
                "it was compiled for the architecture '{}', and this machine's is '{architecture}'",
                self.machine
            ));
        }
        let flags = crate::isa::cpu_flags(cpuinfo);
        let missing = crate::isa::missing(&self.cpu_isa, &flags);
        if missing.is_empty() {
            return None;
        }
        Some(format!(
            "it was compiled for a CPU with {}, which this one lacks: compile it on such a \
             machine, or with the environment variable ATEN_CPU_CAPABILITY=avx2",
            missing.join(", ")
        ))
    }
}

/// The operations in a list of nodes: `{"nodes": [{"node": {"target": "aten::bincount"}}]}`.
///
/// # Errors
///
/// The reason why the text isn't such a list.
pub(crate) fn proxy_operations(text: &str) -> Result<Vec<String>, String> {
    let value: Value = serde_json::from_str(text).map_err(|error| error.to_string())?;
    let nodes = value.get("nodes").and_then(Value::as_array).ok_or("it has no nodes")?;
    let target = |node: &Value| {
        let target = node.pointer("/node/target").and_then(Value::as_str);
        target.unwrap_or("without a name").to_owned()
    };
    let mut operations: Vec<String> = nodes.iter().map(target).collect();
    operations.sort();
    operations.dedup();
    Ok(operations)
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = r#"{"AOTI_DEVICE_KEY": "cpu", "AOTI_PLATFORM": "linux",
        "AOTI_MACHINE": "x86_64", "AOTI_CPU_ISA": "AVX512 AMX_TILE", "AOTI_COMPUTE_CAPABILITY": ""}"#;

    #[test]
    fn models_for_other_machines_are_refused() {
        let metadata = Metadata::parse(TEXT).unwrap();
        let refusal = |metadata: &Metadata, flags: &str| {
            metadata.refusal("x86_64", &format!("flags: {flags}")).unwrap_or_default()
        };
        let all = "fma avx512f avx512dq avx512vl avx512bw amx_tile amx_bf16 amx_int8";
        assert_eq!(refusal(&metadata, all), "");
        let text = refusal(&metadata, "fma avx512f avx512dq avx512vl avx512bw");
        assert!(text.contains("with AMX_TILE, which this one lacks"), "{text}");
        assert!(metadata.refusal("aarch64", "").unwrap().contains("'aarch64'"));
        let cuda = Metadata { device: String::from("cuda"), ..metadata.clone() };
        assert!(refusal(&cuda, all).contains("compiled for 'cuda'"));
        let windows = Metadata { platform: String::from("win32"), ..metadata };
        assert!(refusal(&windows, all).contains("'win32'"));
        assert_eq!(refusal(&Metadata::default(), "none"), "");
    }

    #[test]
    fn metadata_is_an_object() {
        for text in ["", "[]", "{", "1"] {
            assert!(Metadata::parse(text).is_err(), "{text}");
        }
        assert_eq!(Metadata::parse(r#"{"AOTI_CPU_ISA": 5}"#), Ok(Metadata::default()));
    }

    #[test]
    fn operations_are_listed_once() {
        let node = |target: &str| format!(r#"{{"name": "x", "node": {{"target": "{target}"}}}}"#);
        let nodes = [node("b::c"), node("aten::bincount"), node("b::c")].join(",");
        let found = proxy_operations(&format!(r#"{{"nodes": [{nodes}, 1]}}"#)).unwrap();
        assert_eq!(found, ["aten::bincount", "b::c", "without a name"]);
        assert!(proxy_operations(r#"{"nodes": []}"#).unwrap().is_empty());
        assert!(proxy_operations("{}").is_err());
    }
}
