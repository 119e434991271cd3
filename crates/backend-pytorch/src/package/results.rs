//! The results of a compiled model, taken from its library's source.
//!
//! The source allocates each tensor with a type and sizes, gives some of the tensors other names or
//! shapes, and returns some of them: `output_handles[0] = buf3.release();`. A result is unknown if
//! this module doesn't understand where it comes from.

use std::collections::HashMap;

use galatea_tensor::DataType;

use super::shapes::CompiledInput;
use super::tensor::SourceTensor;
use crate::element;

/// A result of a compiled model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum CompiledResult {
    /// A tensor.
    Tensor(SourceTensor),
    /// No value, such as Python's `None`.
    Missing,
    /// A tensor whose origin this module doesn't understand.
    Unknown,
}

/// The maximum number of results.
const COUNT_MAX: usize = 4096;

/// The results of the model with this source and these inputs.
pub(crate) fn compiled_results(source: &str, inputs: &[CompiledInput]) -> Vec<CompiledResult> {
    let mut reader = ResultReader::default();
    for input in inputs {
        reader.tensors.extend(input.tensor());
    }
    let (_, body) = source.rsplit_once("::run_impl(\n").unwrap_or_default();
    for line in body.lines() {
        reader.read(line.trim());
    }
    reader.results
}

/// The tensors and results after some of the statements.
#[derive(Default)]
struct ResultReader<'a> {
    /// The arrays of numbers, which contain sizes or strides.
    arrays: HashMap<&'a str, Vec<String>>,
    tensors: HashMap<String, SourceTensor>,
    results: Vec<CompiledResult>,
}

impl<'a> ResultReader<'a> {
    fn read(&mut self, line: &'a str) {
        if let Some((_, rest)) = line.split_once("int64_t int_array_") {
            self.add_array(rest);
        } else if let Some((_, rest)) = line.split_once("aoti_torch_empty_strided(") {
            self.add_allocated(rest);
        } else if let Some((_, rest)) = line.split_once("assert_size_stride(") {
            self.add_checked(rest);
        } else if let Some(rest) = line.strip_prefix("output_handles[") {
            self.add_result(rest);
        } else if let Some((name, value)) =
            line.strip_prefix("auto ").and_then(|rest| rest.split_once(" = "))
            && !value.starts_with("std::move(inputs[")
        {
            let tensor = self.value(value);
            // An earlier tensor with a different shape may have had the same name.
            self.tensors.remove(name);
            self.tensors.extend(tensor.map(|tensor| (name.to_owned(), tensor)));
        }
    }

    /// `4[] = {3L, };`
    fn add_array(&mut self, rest: &'a str) {
        let Some((number, rest)) = rest.split_once("[] = {") else { return };
        let Some((values, _)) = rest.split_once('}') else { return };
        self.arrays.insert(number, list(values));
    }

    /// `2, int_array_0, int_array_1, cached_torch_dtype_float32, …, &buf0_handle));`
    fn add_allocated(&mut self, arguments: &str) {
        let mut parts = arguments.split(", ");
        let (_, sizes) = (parts.next(), parts.next().and_then(|name| self.array(name)));
        let datatype = parts.find_map(datatype);
        let name = arguments.rsplit_once('&').and_then(|(_, name)| name.split_once("_handle)"));
        if let (Some(sizes), Some(datatype), Some((name, _))) = (sizes, datatype, name) {
            self.tensors.insert(name.to_owned(), SourceTensor::new(datatype, sizes));
        }
    }

    /// `buf1, {s77, 2L}, {2L, 1L}, "torch.ops.aten.topk.default", cached_torch_dtype_float32, …`
    fn add_checked(&mut self, arguments: &str) {
        let Some((name, rest)) = arguments.split_once(", {") else { return };
        let Some((sizes, rest)) = rest.split_once('}') else { return };
        if let Some(datatype) = rest.split(", ").find_map(datatype) {
            self.tensors.insert(name.to_owned(), SourceTensor::new(datatype, list(sizes)));
        }
    }

    /// `0] = buf3.release();` or `3] = output_handles[2];`
    fn add_result(&mut self, rest: &str) {
        let Some((index, value)) = rest.split_once("] = ") else { return };
        let Some(index) = index.parse().ok().filter(|&index: &usize| index < COUNT_MAX) else {
            return;
        };
        let repeated = value.strip_prefix("output_handles[").and_then(|rest| {
            let index: usize = rest.split_once(']')?.0.parse().ok()?;
            self.results.get(index).cloned()
        });
        let found = repeated
            .or_else(|| self.value(value).map(CompiledResult::Tensor))
            .unwrap_or(CompiledResult::Unknown);
        if self.results.len() <= index {
            self.results.resize(index + 1, CompiledResult::Missing);
        }
        if let Some(place) = self.results.get_mut(index) {
            *place = found;
        }
    }

    /// The tensor in `buf0.release();`, `std::move(buf0);  // reuse` or
    /// `wrap_with_raii_handle_if_needed(reinterpret_tensor_wrapper(buf0, 2, int_array_4, …));`.
    fn value(&self, text: &str) -> Option<SourceTensor> {
        if let Some((_, arguments)) = text.split_once("reinterpret_tensor_wrapper(") {
            let mut parts = arguments.split(", ");
            let source = self.tensors.get(parts.next()?)?;
            let sizes = self.array(parts.nth(1)?)?;
            return Some(SourceTensor::new(source.datatype, sizes));
        }
        let moved = text.strip_prefix("std::move(").and_then(|rest| rest.split_once(')'));
        let name = moved.or_else(|| text.split_once(".release()")).map(|(name, _)| name)?;
        self.tensors.get(name).cloned()
    }

    fn array(&self, name: &str) -> Option<Vec<String>> {
        self.arrays.get(name.strip_prefix("int_array_")?).cloned()
    }
}

fn list(values: &str) -> Vec<String> {
    let values = values.split(", ").map(str::trim).filter(|value| !value.is_empty());
    values.map(str::to_owned).collect()
}

fn datatype(argument: &str) -> Option<DataType> {
    element::of_name(argument.strip_prefix("cached_torch_dtype_")?)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Statements as PyTorch generates them.
    const SOURCE: &str = r#"
    ConstantHandle arg0_1 = ConstantHandle(input_handles[0]);
    int32_t arg0_1_expected_dtype = aoti_torch_dtype_float32();
    if (arg0_1_size[0] < 2) {
    if (3 != arg0_1_size[1]) {
    AOTInductorModel::run_impl(
    int64_t int_array_9[] = {1L};
    void AOTInductorModel::run_impl(
    auto arg0_1 = std::move(inputs[0]);
    if (_check()) { assert_size_stride(arg0_1, {s77, 3L}, {3L, 1L}, "input"); }
    const int64_t int_array_0[] = {s77, 3L, 4L};
    static constexpr int64_t int_array_1[] = {12L, 4L, 1L};
    CHECK(aoti_torch_empty_strided(3, int_array_0, int_array_1, cached_torch_dtype_int64, cached_torch_device_type_cpu, this->device_idx_, &buf0_handle));
    RAIIAtenTensorHandle buf0(buf0_handle);
    const int64_t int_array_2[] = {s77, };
    auto var_0 = wrap_with_raii_handle_if_needed(reinterpret_tensor_wrapper(buf0, 1, int_array_2, int_array_3, 0L));
    auto buf5 = std::move(buf0);  // reuse
    if (_check()) { assert_size_stride(buf2, {s77, 2L}, {2L, 1L}, "topk", cached_torch_dtype_bool, "torch.bool"); }
    "#;

    fn results(statements: &str) -> Vec<CompiledResult> {
        let source = format!("{SOURCE}{statements}");
        let inputs = super::super::compiled_inputs(&source);
        compiled_results(&source, &inputs)
    }

    #[test]
    fn results_have_the_types_and_sizes_of_their_tensors() {
        let found = results(
            "output_handles[0] = buf5.release();
             output_handles[2] = var_0.release();
             output_handles[3] = output_handles[2];
             output_handles[4] = buf2.release();
             output_handles[5] = wrap(reinterpret_tensor_wrapper(buf2, 1, int_array_2, int_array_1, 0L)).release();
             output_handles[6] = other.release();",
        );
        let text = |result: &CompiledResult| match result {
            CompiledResult::Tensor(one) => {
                format!("{} {:?}", one.datatype.config_name(), one.sizes)
            }
            other => format!("{other:?}"),
        };
        let found: Vec<String> = found.iter().map(text).collect();
        let expected = [
            "TYPE_INT64 [\"s77\", \"3L\", \"4L\"]",
            "Missing",
            "TYPE_INT64 [\"s77\"]",
            "TYPE_INT64 [\"s77\"]",
            "TYPE_BOOL [\"s77\", \"2L\"]",
            "TYPE_BOOL [\"s77\"]",
            "Unknown",
        ];
        assert_eq!(found, expected);
    }

    #[test]
    fn an_input_may_be_a_result() {
        let [CompiledResult::Tensor(found)] = &*results("output_handles[0] = arg0_1.release();")
        else {
            panic!("the input is known")
        };
        assert_eq!((found.dims(), found.batch_symbol()), (vec![-1, 3], Some("s77")));
        assert_eq!(results("output_handles[0] = gone.release();"), [CompiledResult::Unknown]);
    }

    #[test]
    fn other_sources_have_no_results() {
        assert!(compiled_results("", &[]).is_empty());
        assert!(results("output_handles[99999999] = buf5.release();").is_empty());
        assert!(results("output_handles[x] = buf5.release();").is_empty());
    }
}
