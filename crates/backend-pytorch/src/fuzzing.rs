//! The readers for packages, for fuzz targets.

use crate::{call_spec, isa, package};

/// Parses text as each of the text files in a package, and as the structures in its library.
pub fn read_texts(text: &str) {
    if let Ok(metadata) = package::Metadata::parse(text) {
        let _ = metadata.refusal("x86_64", text);
    }
    let _ = package::proxy_operations(text);
    let _ = (call_spec::input_names(text), call_spec::output_names(text));
    let _ = isa::missing(text, &isa::cpu_flags(text));
    let inputs = package::compiled_inputs(text);
    let shapes: Vec<Vec<i64>> = inputs.iter().map(package::CompiledInput::sizes).collect();
    let contiguous = inputs.iter().filter(|input| input.is_contiguous()).count();
    assert!(contiguous <= inputs.len());
    let results = package::compiled_results(text, &inputs);
    let symbols = results.iter().filter_map(|result| match result {
        package::CompiledResult::Tensor(tensor) => tensor.batch_symbol(),
        package::CompiledResult::Missing | package::CompiledResult::Unknown => None,
    });
    assert!(symbols.count() <= results.len());
    let _ = package::mismatch(&inputs, shapes.iter().map(Vec::as_slice));
}
