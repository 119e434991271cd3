//! The classification extension: replaces an output by its largest elements.
//!
//! A client requests N classes of an output and receives N strings instead, the largest value
//! first. A string is `value:index`, or `value:index:label` if the class has a label. The door
//! changes the response after the model has replied, so code behind the doors never sees the
//! change.

mod cpp_sort;
#[cfg(test)]
mod tests;

use std::cmp::Ordering;
use std::collections::BTreeMap;
use std::io::Write as _;

use crate::limits::MessageLimits;
use galatea_infer::{
    ClassLabels, ClassificationInfo, ClassificationInfoOnce, InferenceResponse, OutputTensor,
    Status,
};
use galatea_tensor::elements::push_bytes_element;
use galatea_tensor::{Buffer, DataType, Shape};

/// The outputs of a request that are replaced by classes.
#[derive(Clone, Debug)]
pub struct Classification {
    /// The number of requested classes for each output.
    counts: BTreeMap<String, u32>,
    /// A cell that is set by the model version that serves the request.
    model: ClassificationInfoOnce,
}

impl Classification {
    /// Creates a classification from output names and their requested class counts, if any. Returns
    /// `None` if no classes are requested. The first of several requests for the same output
    /// counts.
    pub fn new<'a>(requests: impl Iterator<Item = (&'a str, Option<u32>)> + Clone) -> Option<Self> {
        // Hardly any request has one.
        if requests.clone().all(|(_, count)| count.is_none()) {
            return None;
        }
        let mut first = BTreeMap::new();
        for (name, count) in requests {
            first.entry(name).or_insert(count);
        }
        let counts: BTreeMap<_, _> =
            first.into_iter().filter_map(|(name, count)| Some((name.to_owned(), count?))).collect();
        let model = ClassificationInfoOnce::default();
        (!counts.is_empty()).then_some(Self { counts, model })
    }

    /// The request's cell, to be set by the model version that admits the request.
    pub fn class_labels_cell(&self) -> ClassificationInfoOnce {
        self.model.clone()
    }

    /// Replaces the outputs for which classes were requested.
    ///
    /// # Errors
    ///
    /// `InvalidArgument` if an output's type has no classes or the output is too large; `Internal`
    /// if its bytes don't fit its shape.
    pub fn apply(&self, mut response: InferenceResponse) -> Result<InferenceResponse, Status> {
        let unknown = || Status::internal("no model has said what its classes are");
        let model = self.model.get().ok_or_else(unknown)?;
        for output in &mut response.outputs {
            if let Some(count) = self.counts.get(&*output.name) {
                *output = classes(output, *count, model)?;
            }
        }
        Ok(response)
    }
}

fn classes(
    output: &OutputTensor,
    count: u32,
    model: &ClassificationInfo,
) -> Result<OutputTensor, Status> {
    let rank = ranking(output.datatype)?;
    let Layout { items, elements } = Layout::of(output, model)?;
    let internal = |what: &str| Status::internal(format!("output '{}' {what}", output.name));
    let data = output.data.host_bytes().ok_or_else(|| internal("is not in CPU memory"))?;
    if output.shape.byte_size(output.datatype) != u64::try_from(data.len()).ok() {
        return Err(internal("has another size than its shape says"));
    }
    let count = usize::try_from(count).unwrap_or(usize::MAX).min(elements);
    let labels = model.labels(&output.name).map(AsRef::as_ref);
    let mut texts = ClassTexts { labels, line: Vec::new(), data: Vec::new() };
    if count > 0 {
        rank(data, elements, count, &mut texts)?;
    }
    let width = i64::try_from(count).map_err(|_| too_large())?;
    let dims: Vec<i64> = items.into_iter().chain([width]).collect();
    let shape = Shape::new(&dims).map_err(|error| internal(&error.to_string()))?;
    let data = Buffer::from_vec(texts.data);
    Ok(OutputTensor { name: output.name.clone(), datatype: DataType::Bytes, shape, data })
}

/// The items and elements of an output.
struct Layout {
    /// The size of the batch dimension. `None` if there is none or it is 0, which
    /// Triton treats as a dimension of a single item.
    items: Option<i64>,
    /// The number of elements of each item.
    elements: usize,
}

impl Layout {
    fn of(output: &OutputTensor, model: &ClassificationInfo) -> Result<Self, Status> {
        let dims = output.shape.dims();
        let items = dims.first().copied().filter(|&items| model.has_batch_dimension() && items > 0);
        let own = dims.get(usize::from(items.is_some())..).unwrap_or_default();
        let elements = own
            .iter()
            .try_fold(1_usize, |count, &dim| count.checked_mul(usize::try_from(dim).ok()?))
            .filter(|&elements| elements <= MessageLimits::CLASSIFIED_ELEMENTS_MAX)
            .ok_or_else(too_large)?;
        Ok(Self { items, elements })
    }
}

fn too_large() -> Status {
    Status::invalid_argument("classification output tensor too large")
}

/// Appends the largest elements of every item. The arguments are the data, the number of elements
/// per item, the requested number of classes, and the classes to append to.
type RankFn = fn(&[u8], usize, usize, &mut ClassTexts<'_>) -> Result<(), Status>;

fn ranking(datatype: DataType) -> Result<RankFn, Status> {
    Ok(match datatype {
        DataType::Uint8 => |data, all, few, texts| rank(data, all, few, u8::from_le_bytes, texts),
        DataType::Uint16 => |data, all, few, texts| rank(data, all, few, u16::from_le_bytes, texts),
        DataType::Uint32 => |data, all, few, texts| rank(data, all, few, u32::from_le_bytes, texts),
        DataType::Uint64 => |data, all, few, texts| rank(data, all, few, u64::from_le_bytes, texts),
        DataType::Int8 => |data, all, few, texts| rank(data, all, few, i8::from_le_bytes, texts),
        DataType::Int16 => |data, all, few, texts| rank(data, all, few, i16::from_le_bytes, texts),
        DataType::Int32 => |data, all, few, texts| rank(data, all, few, i32::from_le_bytes, texts),
        DataType::Int64 => |data, all, few, texts| rank(data, all, few, i64::from_le_bytes, texts),
        DataType::Fp32 => |data, all, few, texts| rank(data, all, few, f32::from_le_bytes, texts),
        DataType::Fp64 => |data, all, few, texts| rank(data, all, few, f64::from_le_bytes, texts),
        DataType::Bool | DataType::Fp16 | DataType::Bf16 | DataType::Bytes => {
            return Err(Status::invalid_argument(format!(
                "class result not available for output due to unsupported type '{}'",
                datatype.protocol_name()
            )));
        }
    })
}

/// Appends the `count` largest of every `elements` elements.
fn rank<const SIZE: usize, T: Rankable>(
    data: &[u8],
    elements: usize,
    count: usize,
    read: fn([u8; SIZE]) -> T,
    texts: &mut ClassTexts<'_>,
) -> Result<(), Status> {
    let (values, _) = data.as_chunks::<SIZE>();
    let mut ranked: Vec<(T, usize)> = Vec::with_capacity(elements);
    for item in values.chunks(elements.max(1)) {
        let elements = || item.iter().map(|bytes| read(*bytes)).zip(0..);
        ranked.clear();
        ranked.extend(elements());
        if keep_largest(&mut ranked, count) == Ranking::OfLibrary {
            ranked.clear();
            ranked.extend(elements());
            cpp_sort::sort(&mut ranked, |a, b| a.0 > b.0);
            ranked.truncate(count);
        }
        for (value, index) in &ranked {
            texts.push(*value, *index)?;
        }
    }
    Ok(())
}

/// The rule that determines the order of the classes.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
enum Ranking {
    OfValues,
    /// Some values are equal or NaN, so the sort of Triton's C++ library decides.
    OfLibrary,
}

/// Sorts the `count` largest elements and removes the others, unless the library's sort decides.
fn keep_largest<T: Rankable>(ranked: &mut Vec<(T, usize)>, count: usize) -> Ranking {
    if ranked.iter().any(|(value, _)| value.partial_cmp(value).is_none()) {
        return Ranking::OfLibrary;
    }
    let order = |a: &(T, usize), b: &(T, usize)| {
        b.0.partial_cmp(&a.0).unwrap_or(Ordering::Equal).then(a.1.cmp(&b.1))
    };
    let mut next = None;
    if count < ranked.len() {
        let (_, &mut largest, _) = ranked.select_nth_unstable_by(count, order);
        next = Some(largest);
        ranked.truncate(count);
    }
    ranked.sort_unstable_by(order);
    let shown = ranked.iter().chain(&next);
    let has_equal = shown.clone().zip(shown.skip(1)).any(|(a, b)| a.0 == b.0);
    if has_equal { Ranking::OfLibrary } else { Ranking::OfValues }
}

/// The classes of an output.
struct ClassTexts<'a> {
    labels: Option<&'a ClassLabels>,
    /// A buffer that is reused for each class.
    line: Vec<u8>,
    /// The classes as `BYTES` elements.
    data: Vec<u8>,
}

impl ClassTexts<'_> {
    fn push(&mut self, value: impl Rankable, index: usize) -> Result<(), Status> {
        self.line.clear();
        value.write(&mut self.line);
        // Writing to memory never fails.
        let _ = write!(self.line, ":{index}");
        if let Some(label) = self.labels.and_then(|labels| labels.get(index)) {
            self.line.push(b':');
            self.line.extend_from_slice(label.to_bytes());
        }
        if self.data.len().saturating_add(self.line.len()) > MessageLimits::CLASS_BYTES_MAX {
            return Err(too_large());
        }
        push_bytes_element(&mut self.data, &self.line).map_err(|_| too_large())
    }
}

/// An element that is compared and printed as C++ does.
trait Rankable: Copy + PartialOrd {
    fn write(self, text: &mut Vec<u8>);
}

macro_rules! integers {
    ($($kind:ty)*) => {
        $(
            impl Rankable for $kind {
                fn write(self, text: &mut Vec<u8>) {
                    text.extend_from_slice(itoa::Buffer::new().format(self).as_bytes());
                }
            }
        )*
    };
}

integers! { u8 u16 u32 u64 i8 i16 i32 i64 }

impl Rankable for f64 {
    /// Writes the value with exactly six digits after the point. NaN may have a sign.
    fn write(self, text: &mut Vec<u8>) {
        if self.is_nan() {
            text.extend_from_slice(if self.is_sign_negative() { b"-nan" } else { b"nan" });
        } else {
            // Writing to memory never fails.
            let _ = write!(text, "{self:.6}");
        }
    }
}

impl Rankable for f32 {
    fn write(self, text: &mut Vec<u8>) {
        f64::from(self).write(text);
    }
}
