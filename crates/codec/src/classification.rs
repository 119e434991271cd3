//! The classification extension: an output's largest elements by place, in the
//! place of the output.
//!
//! A client asks for N classes of an output and gets strings in its place, the
//! largest value first: the value, the place, and the class's label if it has
//! one, with colons between them. That is a change of the response alone, made
//! after the model has answered; nothing behind the doors sees it.

use std::cmp::Ordering;
use std::collections::BTreeMap;
use std::io::Write as _;

use galatea_infer::{
    ClassLabels, ClassesCell, InferenceResponse, ModelClasses, OutputTensor, Status,
};
use galatea_tensor::elements::push_bytes_element;
use galatea_tensor::{Buffer, DataType, Shape};

/// How many elements an item of a batch may have, as in the original.
const ELEMENTS_MAX: usize = 1_000_000;

/// How many bytes the classes of one output may come to. A value can take three
/// hundred digits, and a label whatever the file says.
const TEXT_BYTES_MAX: usize = 256 << 20;

/// Which outputs of a request are wanted as classes.
#[derive(Clone, Debug)]
pub struct Classification {
    /// How many classes of which output.
    counts: BTreeMap<String, u64>,
    /// Says what the model that answers is like.
    model: ClassesCell,
}

impl Classification {
    /// For outputs and how many classes are wanted of each; 0 asks for the output
    /// itself. `None` if no classes are wanted. Of several mentions of an output
    /// the first counts.
    pub(crate) fn of<'a>(mentions: impl Iterator<Item = (&'a str, u64)> + Clone) -> Option<Self> {
        if mentions.clone().all(|(_, count)| count == 0) {
            return None;
        }
        let mut counts = BTreeMap::new();
        for (name, count) in mentions {
            counts.entry(name.to_owned()).or_insert(count);
        }
        counts.retain(|_, count| *count > 0);
        Some(Self { counts, model: ClassesCell::default() })
    }

    /// Where the model that takes the request says what it is like.
    pub(crate) fn slot(&self) -> ClassesCell {
        self.model.clone()
    }

    /// The response with classes in the place of the outputs that were asked for
    /// so.
    ///
    /// # Errors
    ///
    /// `InvalidArgument` if an output's type has no classes, or if it is too
    /// large; `Internal` if its bytes don't fit its shape.
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
    count: u64,
    model: &ModelClasses,
) -> Result<OutputTensor, Status> {
    let rank = ranking(output.datatype)?;
    let Division { items, elements } = Division::of(output, model)?;
    let internal = |what: &str| Status::internal(format!("output '{}' {what}", output.name));
    let data = output.data.host().ok_or_else(|| internal("is not in CPU memory"))?;
    if output.shape.byte_size(output.datatype) != u64::try_from(data.len()).ok() {
        return Err(internal("has another size than its shape says"));
    }
    let count = usize::try_from(count).unwrap_or(usize::MAX).min(elements);
    let labels = model.labels(&output.name).map(AsRef::as_ref);
    let mut texts = Texts { labels, line: Vec::new(), data: Vec::new() };
    if count > 0 {
        rank(data, elements, count, &mut texts)?;
    }
    let width = i64::try_from(count).map_err(|_| too_large())?;
    let dims: Vec<i64> = items.into_iter().chain([width]).collect();
    let shape = Shape::new(&dims).map_err(|error| internal(&error.to_string()))?;
    let data = Buffer::from_vec(texts.data);
    Ok(OutputTensor { name: output.name.clone(), datatype: DataType::Bytes, shape, data })
}

/// How an output is divided.
struct Division {
    /// How many items the batch has. `None` without a batch dimension, and with
    /// an empty one, which counts as a dimension of a single item as in the
    /// original.
    items: Option<i64>,
    /// How many elements each of them has.
    elements: usize,
}

impl Division {
    fn of(output: &OutputTensor, model: &ModelClasses) -> Result<Self, Status> {
        let dims = output.shape.dims();
        let items = dims.first().copied().filter(|&items| model.batches() && items > 0);
        let own = dims.get(usize::from(items.is_some())..).unwrap_or_default();
        let elements = own
            .iter()
            .try_fold(1_usize, |count, &dim| count.checked_mul(usize::try_from(dim).ok()?))
            .filter(|&elements| elements <= ELEMENTS_MAX)
            .ok_or_else(too_large)?;
        Ok(Self { items, elements })
    }
}

fn too_large() -> Status {
    Status::invalid_argument("classification output tensor too large")
}

/// Appends the largest of so many elements each, so many of them.
type Ranking = fn(&[u8], usize, usize, &mut Texts<'_>) -> Result<(), Status>;

fn ranking(datatype: DataType) -> Result<Ranking, Status> {
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

/// Equal values come in the order of their places. The original leaves that
/// order to its library's sorting, which is the same up to 16 elements.
fn rank<const SIZE: usize, T: Value>(
    data: &[u8],
    elements: usize,
    count: usize,
    read: fn([u8; SIZE]) -> T,
    texts: &mut Texts<'_>,
) -> Result<(), Status> {
    let (values, _) = data.as_chunks::<SIZE>();
    let order = |a: &(T, usize), b: &(T, usize)| a.0.descending(b.0).then(a.1.cmp(&b.1));
    let mut ranked: Vec<(T, usize)> = Vec::with_capacity(elements);
    for item in values.chunks(elements.max(1)) {
        ranked.clear();
        ranked.extend(item.iter().map(|bytes| read(*bytes)).zip(0..));
        if count < ranked.len() {
            ranked.select_nth_unstable_by(count, order);
            ranked.truncate(count);
        }
        ranked.sort_unstable_by(order);
        for (value, place) in &ranked {
            texts.push(*value, *place)?;
        }
    }
    Ok(())
}

/// The classes of an output.
struct Texts<'a> {
    labels: Option<&'a ClassLabels>,
    /// Used for each class anew.
    line: Vec<u8>,
    /// The classes, laid out as elements of strings.
    data: Vec<u8>,
}

impl Texts<'_> {
    fn push(&mut self, value: impl Value, place: usize) -> Result<(), Status> {
        self.line.clear();
        value.write(&mut self.line);
        // Writing to memory does not fail.
        let _ = write!(self.line, ":{place}");
        if let Some(label) = self.labels.and_then(|labels| labels.get(place)) {
            self.line.push(b':');
            self.line.extend_from_slice(label.to_bytes());
        }
        if self.data.len().saturating_add(self.line.len()) > TEXT_BYTES_MAX {
            return Err(too_large());
        }
        push_bytes_element(&mut self.data, &self.line).map_err(|_| too_large())
    }
}

/// A value that is ranked and written, as C++ does both.
trait Value: Copy {
    /// Larger ones first.
    fn descending(self, other: Self) -> Ordering;
    fn write(self, text: &mut Vec<u8>);
}

macro_rules! integers {
    ($($kind:ty)*) => {
        $(
            impl Value for $kind {
                fn descending(self, other: Self) -> Ordering {
                    other.cmp(&self)
                }

                fn write(self, text: &mut Vec<u8>) {
                    text.extend_from_slice(itoa::Buffer::new().format(self).as_bytes());
                }
            }
        )*
    };
}

integers! { u8 u16 u32 u64 i8 i16 i32 i64 }

impl Value for f64 {
    /// What is no number is never among the largest; the original's order of it
    /// means nothing.
    fn descending(self, other: Self) -> Ordering {
        let order = other.partial_cmp(&self);
        order.unwrap_or_else(|| self.is_nan().cmp(&other.is_nan()))
    }

    /// Six digits behind the point, always. What is no number may have a sign.
    fn write(self, text: &mut Vec<u8>) {
        if self.is_nan() {
            text.extend_from_slice(if self.is_sign_negative() { b"-nan" } else { b"nan" });
        } else {
            // Writing to memory does not fail.
            let _ = write!(text, "{self:.6}");
        }
    }
}

impl Value for f32 {
    fn descending(self, other: Self) -> Ordering {
        f64::from(self).descending(f64::from(other))
    }

    fn write(self, text: &mut Vec<u8>) {
        f64::from(self).write(text);
    }
}

#[cfg(test)]
mod tests;
