//! The shapes that a model was compiled for, taken from its library's source.
//!
//! AOTInductor's generated source contains input checks, which run only if the environment variable
//! `AOTI_RUNTIME_CHECK_INPUTS` is set. They refuse a size of 1 in most variable dimensions,
//! although the code computes correctly. Without these checks, a wrong shape makes the code read
//! memory outside the input. Packages contain the source, so this module reads the checks, and the
//! server performs them.
//!
//! The source is generated, with one statement per line, and the statements have been the same
//! since PyTorch 2.6. PyTorch 2.15 lists the sizes of each input by symbols. In the source of 2.9, a
//! symbol is defined by the first size that has it, and nothing shows which other sizes depend on
//! it. An input whose types or sizes this module doesn't understand is refused.

use galatea_tensor::DataType;

use super::formula::{SizeFormula, integer};
use super::tensor::SourceTensor;
use super::writes::InputAliases;
use crate::element;

/// An input that a model was compiled for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct CompiledInput {
    /// The input's name in the source.
    name: String,
    /// The element type; `None` if it is unknown.
    pub(crate) datatype: Option<DataType>,
    /// The sizes.
    pub(crate) dims: Vec<CompiledDim>,
    /// The fixed strides, by dimension.
    strides: Vec<Option<i64>>,
    /// True if the model writes to the input.
    pub(crate) is_written: bool,
    /// True if the source lists the sizes with the symbols that they share.
    has_sizes: bool,
    /// A statement about the input that couldn't be parsed.
    problem: Option<String>,
}

/// A size that a model was compiled for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct CompiledDim {
    /// The only valid size, if the dimension isn't variable.
    pub(crate) fixed: Option<i64>,
    /// The minimum size.
    min: Option<i64>,
    /// The maximum size.
    max: Option<i64>,
    /// The dependence on a size that several dimensions share.
    formula: Option<SizeFormula>,
}

/// The maximum number of inputs and of dimensions.
const COUNT_MAX: usize = 4096;

/// Parses the inputs of the model with this source. Returns an empty list if the source contains no
/// checks.
pub(crate) fn compiled_inputs(source: &str) -> Vec<CompiledInput> {
    let mut inputs: Vec<CompiledInput> = Vec::new();
    let mut current = None;
    let mut aliases: Option<InputAliases> = None;
    for line in source.lines() {
        let line = line.trim();
        if let Some((name, index)) = section(line) {
            if inputs.len() <= index {
                inputs.resize(index + 1, CompiledInput::default());
            }
            (current, aliases) = (Some(index), None);
            if let Some(input) = inputs.get_mut(index) {
                *input = CompiledInput { name: name.to_owned(), ..CompiledInput::default() };
            }
        } else if line.starts_with("void ") || line.contains("output_handles[") {
            current = None;
        } else if line.contains("assert_size_stride(") {
            add_sizes(line, &mut inputs);
        } else if let Some(input) = current.and_then(|index| inputs.get_mut(index)) {
            input.read_check(line);
        } else if current.is_none() && !inputs.is_empty() {
            add_symbol(line, &mut inputs);
            let names = || InputAliases::new(inputs.iter().map(|input| input.name.as_str()));
            let written = aliases.get_or_insert_with(names).written_by(line);
            if let Some(input) = written.and_then(|index| inputs.get_mut(index)) {
                input.is_written = true;
            }
        }
    }
    // If an input has no checks, it is unknown, and so are all other inputs.
    if inputs.iter().any(|input| input.name.is_empty()) { Vec::new() } else { inputs }
}

/// The name and the index in `ConstantHandle arg0_1 = ConstantHandle(input_handles[0]);`.
fn section(line: &str) -> Option<(&str, usize)> {
    let (name, rest) = line.strip_prefix("ConstantHandle ")?.split_once(" = ")?;
    let index = rest.strip_prefix("ConstantHandle(input_handles[")?.strip_suffix("]);")?;
    let index = index.parse().ok().filter(|&index| index < COUNT_MAX)?;
    Some((name, index))
}

impl CompiledInput {
    fn read_check(&mut self, line: &str) {
        if let Some((_, rest)) = line.split_once("_expected_dtype = aoti_torch_dtype_") {
            let name = rest.trim_end_matches("();");
            self.datatype = element::of_name(name);
            if self.datatype.is_none() {
                self.problem = Some(format!("has the unsupported element type '{name}'"));
            }
            return;
        }
        let Some(condition) = line.strip_prefix("if (").and_then(|rest| rest.strip_suffix(") {"))
        else {
            return;
        };
        let (size, stride) = (format!("{}_size", self.name), format!("{}_stride", self.name));
        if let Some((value, tensor)) = condition.split_once(" != ") {
            let value = integer(value);
            if let Some(dim) = indexed(tensor, &size).and_then(|index| self.dim(index)) {
                dim.fixed = value;
            } else if let Some(index) = indexed(tensor, &stride) {
                if self.strides.len() <= index {
                    self.strides.resize(index + 1, None);
                }
                if let Some(stride) = self.strides.get_mut(index) {
                    *stride = value;
                }
                // The last dimension's stride shows the number of dimensions.
                self.dim(index);
            }
        } else if let Some((tensor, value)) = condition.split_once(" < ") {
            if let Some(dim) = indexed(tensor, &size).and_then(|index| self.dim(index)) {
                dim.min = integer(value);
            }
        } else if let Some((tensor, value)) = condition.split_once(" > ")
            && let Some(dim) = indexed(tensor, &size).and_then(|index| self.dim(index))
        {
            dim.max = integer(value);
        }
    }

    fn dim(&mut self, index: usize) -> Option<&mut CompiledDim> {
        if self.dims.len() <= index {
            self.dims.resize(index + 1, CompiledDim::default());
        }
        self.dims.get_mut(index)
    }

    /// Returns true if the model was compiled for row-major elements, which is the only order that
    /// requests have.
    pub(crate) fn is_contiguous(&self) -> bool {
        let mut expected = Some(1_i64);
        for (index, dim) in self.dims.iter().enumerate().rev() {
            let stride = self.strides.get(index).copied().flatten();
            let matters = dim.fixed != Some(1);
            if let (Some(stride), Some(expected), true) = (stride, expected, matters)
                && stride != expected
            {
                return false;
            }
            expected = match (expected, dim.fixed) {
                (Some(expected), Some(size)) => expected.checked_mul(size.max(1)),
                _ => None,
            };
        }
        true
    }

    /// The reason why requests can't be compared with the input, if there is one.
    pub(crate) fn problem(&self) -> Option<&str> {
        let unknown = "has variable dimensions, and the package doesn't list how its sizes depend on \
                       others: compile the model with a later release of PyTorch";
        self.problem.as_deref().or((!self.has_sizes && self.may_depend()).then_some(unknown))
    }

    /// Returns true if a size may depend on another one, as far as the statements without a list of
    /// sizes tell. A variable dimension is independent if it defines a symbol. Every dimension has a
    /// stride, so the strides show that none is missing.
    fn may_depend(&self) -> bool {
        let is_known = |dim: &CompiledDim| dim.fixed.is_some() || dim.formula.is_some();
        let is_variable = self.dims.iter().any(|dim| dim.fixed.is_none());
        !self.dims.iter().all(is_known) || (is_variable && self.strides.len() != self.dims.len())
    }

    /// The sizes, where -1 means variable.
    pub(crate) fn sizes(&self) -> Vec<i64> {
        self.dims.iter().map(|dim| dim.fixed.unwrap_or(-1)).collect()
    }

    /// The name in the source, with the type and the sizes if they are known.
    pub(super) fn tensor(&self) -> Option<(String, SourceTensor)> {
        let size = |dim: &CompiledDim| match (dim.fixed, &dim.formula) {
            (Some(fixed), _) => format!("{fixed}L"),
            (None, Some(formula)) => formula.to_string(),
            (None, None) => String::from("?"),
        };
        let sizes = self.dims.iter().map(size).collect();
        Some((self.name.clone(), SourceTensor::new(self.datatype?, sizes)))
    }

    /// The name of the first size, if it is variable, independent of other sizes, and may be 1.
    pub(crate) fn batch_symbol(&self) -> Option<&str> {
        let dim = self.dims.first().filter(|dim| dim.fixed.is_none() && dim.accepts(1))?;
        dim.formula.as_ref()?.plain_symbol()
    }

    /// The maximum first size, if there is one.
    pub(crate) fn largest_batch(&self) -> Option<i64> {
        self.dims.first()?.max
    }

    fn accepts(&self, dims: &[i64]) -> bool {
        self.dims.len() == dims.len()
            && self.dims.iter().zip(dims).all(|(dim, &size)| dim.accepts(size))
    }
}

impl CompiledDim {
    /// Returns true if the model computes correctly with this size. In PyTorch, every variable
    /// dimension has a minimum of 2, because the compiler treats 0 and 1 as constants; code for
    /// larger sizes is also correct for these.
    fn accepts(&self, size: i64) -> bool {
        let usual = self.formula.as_ref().and_then(|formula| formula.size(2)).unwrap_or(2);
        self.fixed.is_none_or(|fixed| fixed == size)
            && self.formula.as_ref().is_none_or(|formula| formula.value(size).is_some())
            && self.min.is_none_or(|min| min <= usual || size >= min)
            && self.max.is_none_or(|max| size <= max)
    }
}

/// The index in `NAME[3]`.
fn indexed(text: &str, name: &str) -> Option<usize> {
    let index = text.strip_prefix(name)?.strip_prefix('[')?.strip_suffix(']')?;
    index.parse().ok().filter(|&index| index < COUNT_MAX)
}

/// Parses the definition of a symbol by the size that has it first, `int64_t s17 = arg0_1_size[0];`.
fn add_symbol(line: &str, inputs: &mut [CompiledInput]) {
    let Some((symbol, rest)) = line.strip_prefix("int64_t ").and_then(|it| it.split_once(" = "))
    else {
        return;
    };
    let Some(tensor) = rest.strip_suffix(';') else { return };
    for input in inputs {
        let index = indexed(tensor, &format!("{}_size", input.name));
        if let Some(dim) = index.and_then(|index| input.dim(index))
            && dim.formula.is_none()
        {
            dim.formula = SizeFormula::parse(symbol);
        }
    }
}

/// Parses the sizes in `assert_size_stride(arg0_1, {s17, 3L}, {3L, 1L}, "input");`.
fn add_sizes(line: &str, inputs: &mut [CompiledInput]) {
    let Some((_, rest)) = line.split_once("assert_size_stride(") else { return };
    let Some((name, rest)) = rest.split_once(", {") else { return };
    let Some((sizes, _)) = rest.split_once('}') else { return };
    let Some(input) = inputs.iter_mut().find(|input| input.name == name) else { return };
    let sizes: Vec<&str> =
        sizes.split(", ").map(str::trim).filter(|size| !size.is_empty()).collect();
    input.has_sizes = true;
    if sizes.len() != input.dims.len() {
        input.problem = Some(format!("has an unknown number of dimensions ({})", sizes.len()));
        return;
    }
    for (dim, size) in input.dims.iter_mut().zip(sizes) {
        let number = integer(size);
        dim.formula = SizeFormula::parse(size);
        let is_understood = if number.is_some() {
            *dim.fixed.get_or_insert_with(|| number.unwrap_or(0)) == number.unwrap_or(0)
        } else {
            dim.formula.is_some()
        };
        if !is_understood {
            input.problem = Some(format!("has a size that the server can't check ({size})"));
        }
    }
}

/// The first input with a shape that the model wasn't compiled for, and the reason. `shapes`
/// contains the shapes of all inputs in the model's order.
pub(crate) fn mismatch<'a>(
    inputs: &[CompiledInput],
    shapes: impl Iterator<Item = &'a [i64]>,
) -> Option<(usize, String)> {
    let mut sizes: smallvec::SmallVec<[(&str, i64); 8]> = smallvec::SmallVec::new();
    for (index, (input, dims)) in inputs.iter().zip(shapes).enumerate() {
        if !input.accepts(dims) {
            return Some((index, format!("the model was compiled for {}", display(input))));
        }
        for (dim, &size) in input.dims.iter().zip(dims) {
            let Some(formula) = dim.formula.as_ref() else { continue };
            match sizes.iter().find(|(known, _)| *known == formula.symbol) {
                Some(&(_, known)) if formula.size(known) != Some(size) => {
                    let expected = formula.size(known).unwrap_or(-1);
                    let text = format!(
                        "the model was compiled for a size that follows from another one and is \
                         {expected}"
                    );
                    return Some((index, text));
                }
                Some(_) => {}
                // The size was accepted, so the value exists.
                None => sizes.extend(formula.value(size).map(|value| (&*formula.symbol, value))),
            }
        }
    }
    None
}

/// The sizes as text, such as `[2..1024,4]`; -1 means any size.
fn display(input: &CompiledInput) -> String {
    let size = |dim: &CompiledDim| match (dim.fixed, dim.min.filter(|&min| min > 2), dim.max) {
        (Some(fixed), ..) => fixed.to_string(),
        (None, None, None | Some(i64::MAX)) => String::from("-1"),
        (None, min, max) => {
            let max = max.filter(|&max| max < i64::MAX);
            format!("{}..{}", min.unwrap_or(0), max.map_or_else(String::new, |max| max.to_string()))
        }
    };
    let sizes: Vec<String> = input.dims.iter().map(size).collect();
    format!("[{}]", sizes.join(","))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Statements as PyTorch generates them.
    const SOURCE: &str = r#"
    AOTI_NOINLINE static void check_input_0(
        ConstantHandle arg2_1 = ConstantHandle(input_handles[0]);
        int32_t arg2_1_expected_dtype = aoti_torch_dtype_float32();
        if (arg2_1_expected_dtype != arg2_1_dtype) {
        if (arg2_1_size[0] < 2) {
        if (arg2_1_size[0] > 1024) {
        if (4 != arg2_1_size[1]) {
        if (4 != arg2_1_stride[0]) {
        if (1 != arg2_1_stride[1]) {
    }
        ConstantHandle arg3_1 = ConstantHandle(input_handles[1]);
        int32_t arg3_1_expected_dtype = aoti_torch_dtype_int64();
        if (arg3_1_size[0] < 5) {
        if (1 != arg3_1_stride[0]) {
    void AOTInductorModel::run_impl(
        if (9 != arg3_1_size[0]) {
        if (_check_aoti_runtime_check_inputs_env()) { assert_size_stride(arg2_1, {s17, 4L}, {4L, 1L}, "input"); }
        if (_check_aoti_runtime_check_inputs_env()) { assert_size_stride(arg3_1, {s17}, {1L}, "input"); }
        if (_check_aoti_runtime_check_inputs_env()) { assert_size_stride(buf3, {s17}, {1L}, "input"); }
    "#;

    fn refused(shapes: [&[i64]; 2]) -> Option<(usize, String)> {
        mismatch(&compiled_inputs(SOURCE), shapes.into_iter())
    }

    #[test]
    fn the_checks_in_the_source_are_read() {
        let inputs = compiled_inputs(SOURCE);
        let sizes: Vec<Vec<i64>> = inputs.iter().map(CompiledInput::sizes).collect();
        assert_eq!(sizes, [vec![-1, 4], vec![-1]]);
        let types: Vec<_> = inputs.iter().map(|input| input.datatype).collect();
        assert_eq!(types, [Some(DataType::Fp32), Some(DataType::Int64)]);
        assert!(inputs.iter().all(CompiledInput::is_contiguous));
    }

    #[test]
    fn shapes_that_the_model_was_not_compiled_for_are_found() {
        assert_eq!(refused([&[7, 4], &[7]]), None);
        for shape in [&[7, 5][..], &[7], &[7, 4, 1], &[1025, 4]] {
            let (index, text) = refused([shape, &[7]]).unwrap();
            assert_eq!((index, &*text), (0, "the model was compiled for [0..1024,4]"));
        }
        assert_eq!(refused([&[4, 4], &[4]]).unwrap().1, "the model was compiled for [5..]");
        let (index, text) = refused([&[7, 4], &[8]]).unwrap();
        assert!(index == 1 && text.ends_with("and is 7"), "{text}");
    }

    #[test]
    fn sizes_that_follow_from_others_are_checked() {
        let source = SOURCE.replace("arg3_1, {s17}", "arg3_1, {1L + 2L*s17, }");
        let inputs = compiled_inputs(&source);
        assert_eq!(inputs.iter().find_map(CompiledInput::problem), None);
        let refused =
            |shapes: [&[i64]; 2]| mismatch(&inputs, shapes.into_iter()).map(|found| found.1);
        for batch in [0, 1, 2, 7] {
            assert_eq!(refused([&[batch, 4], &[2 * batch + 1]]), None);
        }
        assert!(refused([&[7, 4], &[17]]).unwrap().ends_with("and is 15"));
        assert!(refused([&[7, 4], &[14]]).is_some());
    }

    #[test]
    fn inputs_that_can_not_be_checked_have_a_problem() {
        let problem = |from: &str, to: &str| {
            let inputs = compiled_inputs(&SOURCE.replace(from, to));
            inputs.iter().find_map(CompiledInput::problem).unwrap_or_default().to_owned()
        };
        assert_eq!(problem("", ""), "");
        assert!(problem("arg3_1, {s17}", "arg3_1, {s17*s27}").contains("can't check (s17*s27)"));
        assert!(problem("(arg3_1, {s17}", "(arg9_1, {s17}").contains("doesn't list how its sizes"));
        assert!(problem("arg2_1, {s17, 4L}", "arg2_1, {s17, 5L}").contains("can't check (5L)"));
        assert!(problem("arg3_1, {s17}", "arg3_1, {s17, 1L}").contains("number of dimensions"));
        assert!(problem("dtype_int64", "dtype_complex64").contains("'complex64'"));
    }

    /// The statements of PyTorch 2.9, which don't list sizes.
    #[test]
    fn without_lists_the_sizes_that_define_a_symbol_are_independent() {
        let old = |definitions: &str| {
            let lines = SOURCE.lines().filter(|line| !line.contains("assert_size_stride"));
            let source: Vec<&str> = lines.chain(definitions.lines()).collect();
            compiled_inputs(&source.join("\n"))
        };
        let inputs = old("int64_t s77 = arg2_1_size[0];\nint64_t s3 = arg3_1_size[0];");
        assert_eq!(inputs.iter().find_map(CompiledInput::problem), None);
        assert_eq!(mismatch(&inputs, [&[7, 4][..], &[9]].into_iter()), None);
        assert!(mismatch(&inputs, [&[7, 5][..], &[9]].into_iter()).is_some());
        assert_eq!(inputs[0].batch_symbol(), Some("s77"));
        // The other input may have the same size.
        let inputs = old("int64_t s77 = arg2_1_size[0];");
        assert_eq!(inputs[0].problem(), None);
        assert!(inputs[1].problem().unwrap().contains("how its sizes depend on others"));
        // A dimension of which only the stride is known.
        let source = SOURCE.replace("if (4 != arg2_1_size[1]) {", "");
        let lines = source.lines().filter(|line| !line.contains("assert_size_stride"));
        let source: Vec<&str> = lines.chain(["int64_t s7 = arg2_1_size[0];"]).collect();
        assert!(compiled_inputs(&source.join("\n"))[0].problem().is_some());
    }

    #[test]
    fn a_size_of_one_is_correct_in_a_variable_dimension() {
        let source = SOURCE.replace("arg3_1_size[0] < 5", "arg3_1_size[0] < 2");
        let inputs = compiled_inputs(&source);
        assert_eq!(mismatch(&inputs, [&[1, 4][..], &[1]].into_iter()), None);
    }

    #[test]
    fn inputs_that_the_model_writes_to_are_found() {
        let written = |statement: &str| -> Vec<bool> {
            let inputs = compiled_inputs(&format!("{SOURCE}\n{statement}"));
            inputs.iter().map(|input| input.is_written).collect()
        };
        let read = "f((const float*)(arg2_1.data_ptr()), (float*)(buf0.data_ptr()));";
        assert_eq!(written(read), [false, false]);
        let write = "f((const float*)(arg2_1.data_ptr()), (float*)(arg2_1.data_ptr()));";
        assert_eq!(written(write), [true, false]);
        let copy = "AOTI_TORCH_ERROR_CODE_CHECK(aoti_torch_copy_(arg3_1, buf0, 0));";
        assert_eq!(written(copy), [false, true]);
    }

    #[test]
    fn another_order_of_elements_is_found() {
        let source = SOURCE.replace("(4 != arg2_1_stride[0])", "(1 != arg2_1_stride[0])");
        let inputs = compiled_inputs(&source);
        assert!(!inputs[0].is_contiguous() && inputs[1].is_contiguous());
    }

    #[test]
    fn a_source_without_checks_says_nothing() {
        for source in ["", "void run();", "ConstantHandle a = ConstantHandle(input_handles[1]);"] {
            assert!(compiled_inputs(source).is_empty());
        }
        let huge = "ConstantHandle a = ConstantHandle(input_handles[99999999999]);";
        assert!(compiled_inputs(huge).is_empty());
    }
}
