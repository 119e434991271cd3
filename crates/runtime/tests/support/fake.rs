//! A runtime in Rust, whose models are functions.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use galatea_backend::{ExecutionPredictability, ExecutionTerminator};
use galatea_infer::Status;
use galatea_runtime::{
    ByteRegion, ElementKind, OpenedModel, OutputData, OutputPlace, OwnedRunOutput, PackedStrings,
    Session, SessionInterface, SessionOutputs, SessionSource, TensorInfo,
};
use galatea_tensor::elements::BytesElements;
use galatea_tensor::{DataType, Shape};

/// An owned tensor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Value {
    pub(crate) datatype: DataType,
    pub(crate) dims: Vec<i64>,
    pub(crate) elements: Elements,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Elements {
    Fixed(Vec<u8>),
    Strings(Vec<Vec<u8>>),
}

impl Value {
    pub(crate) fn int32s(dims: &[i64], values: &[i32]) -> Self {
        let elements = Elements::Fixed(super::int32s(values));
        Self { datatype: DataType::Int32, dims: dims.to_vec(), elements }
    }

    pub(crate) fn strings(dims: &[i64], strings: Vec<Vec<u8>>) -> Self {
        let elements = Elements::Strings(strings);
        Self { datatype: DataType::Bytes, dims: dims.to_vec(), elements }
    }

    /// The elements as numbers.
    pub(crate) fn numbers(&self) -> Vec<i32> {
        let Elements::Fixed(bytes) = &self.elements else { panic!("strings are no numbers") };
        bytes.as_chunks::<4>().0.iter().map(|&four| i32::from_le_bytes(four)).collect()
    }

    /// The elements as strings.
    pub(crate) fn texts(&self) -> &[Vec<u8>] {
        let Elements::Strings(strings) = &self.elements else { panic!("numbers are no strings") };
        strings
    }
}

/// Computes all outputs from all inputs, in the interface's order. `None` stands for an omitted
/// input.
pub(crate) type Compute = fn(&[Option<Value>]) -> Result<Vec<Value>, Status>;

/// The events that tests examine. All sessions of a model share the journal.
#[derive(Debug, Default)]
pub(crate) struct Journal {
    /// The number of models that were loaded.
    pub(crate) loads: AtomicUsize,
    /// The address and size of each input with fixed-size elements, for each run.
    pub(crate) runs: Mutex<Vec<Vec<(usize, usize)>>>,
    /// The outputs that were requested in each run.
    pub(crate) requested: Mutex<Vec<Vec<usize>>>,
    pub(crate) is_terminated: AtomicBool,
}

/// The model of a test.
pub(crate) struct FakeSource {
    pub(crate) interface: SessionInterface,
    pub(crate) compute: Compute,
    pub(crate) journal: Arc<Journal>,
}

pub(crate) struct FakeSession {
    model: Arc<(SessionInterface, Compute)>,
    journal: Arc<Journal>,
}

pub(crate) struct FakeTensor<'data> {
    datatype: DataType,
    shape: Shape,
    content: Content<'data>,
}

enum Content<'data> {
    InPlace(ByteRegion<'data>),
    Strings(Vec<Vec<u8>>),
}

pub(crate) struct FakeOutputs(Vec<Value>);

impl SessionSource for FakeSource {
    type Shared = Arc<(SessionInterface, Compute)>;
    type Session = FakeSession;

    fn open_shared(&self) -> Result<OpenedModel<Self::Shared>, Status> {
        self.journal.loads.fetch_add(1, Ordering::Relaxed);
        let interface = self.interface.clone();
        let session = Arc::new((interface.clone(), self.compute));
        Ok(OpenedModel { session, interface, guarantee: ExecutionPredictability::Predictable })
    }

    fn session(&self, model: Self::Shared) -> Result<FakeSession, Status> {
        Ok(FakeSession { model, journal: self.journal.clone() })
    }
}

impl Session for FakeSession {
    type Tensor<'data> = FakeTensor<'data>;
    type Outputs<'data> = FakeOutputs;

    fn tensor<'data>(
        &self,
        datatype: DataType,
        shape: &Shape,
        data: ByteRegion<'data>,
    ) -> Result<FakeTensor<'data>, Status> {
        let expected = shape.byte_size(datatype).and_then(|size| usize::try_from(size).ok());
        let aligned = datatype.byte_size().is_some_and(|size| data.is_aligned(size));
        if expected != Some(data.byte_size()) || !aligned {
            return Err(Status::internal("no aligned tensor of this shape"));
        }
        Ok(FakeTensor { datatype, shape: shape.clone(), content: Content::InPlace(data) })
    }

    fn strings<'data>(&self, shape: &Shape, parts: &[&[u8]]) -> Result<FakeTensor<'data>, Status> {
        let elements = parts.iter().flat_map(|part| BytesElements::new(part));
        let strings: Vec<Vec<u8>> = elements.map(|element| element.unwrap().to_vec()).collect();
        if u64::try_from(strings.len()) != Ok(shape.element_count()) {
            return Err(Status::internal(format!("{} strings for {shape}", strings.len())));
        }
        let (datatype, shape) = (DataType::Bytes, shape.clone());
        Ok(FakeTensor { datatype, shape, content: Content::Strings(strings) })
    }

    fn run<'data>(
        &mut self,
        inputs: &[(usize, Self::Tensor<'data>)],
        outputs: &[(usize, OutputPlace)],
    ) -> Result<Self::Outputs<'data>, Status> {
        let mut values = vec![None; self.model.0.inputs.len()];
        let mut places = Vec::new();
        for (index, tensor) in inputs {
            values[*index] = Some(tensor.read());
            if let Content::InPlace(region) = &tensor.content {
                places.push((region.start().addr(), region.byte_size()));
            }
        }
        assert!(outputs.iter().all(|(_, place)| *place == OutputPlace::Host));
        let requested: Vec<usize> = outputs.iter().map(|(index, _)| *index).collect();
        self.journal.runs.lock().unwrap().push(places);
        self.journal.requested.lock().unwrap().push(requested.clone());
        if self.journal.is_terminated.load(Ordering::Relaxed) {
            return Err(Status::internal("the run was ended"));
        }
        let computed = (self.model.1)(&values)?;
        Ok(FakeOutputs(requested.iter().map(|&index| computed[index].clone()).collect()))
    }

    fn terminator(&self) -> Option<Arc<dyn ExecutionTerminator>> {
        Some(self.journal.clone())
    }
}

impl ExecutionTerminator for Journal {
    fn terminate(&self) {
        self.is_terminated.store(true, Ordering::Relaxed);
    }

    fn reset(&self) {
        self.is_terminated.store(false, Ordering::Relaxed);
    }
}

impl FakeTensor<'_> {
    fn read(&self) -> Value {
        let elements = match &self.content {
            Content::Strings(strings) => Elements::Strings(strings.clone()),
            Content::InPlace(region) => {
                let mut bytes = vec![0_u8; region.byte_size()];
                #[allow(unsafe_code, reason = "a library reads a region by its address")]
                // SAFETY: a region's bytes are borrowed for `'data`, which outlasts this call. They
                // may belong to several allocations, so no slice is created over them.
                unsafe {
                    std::ptr::copy_nonoverlapping(region.start(), bytes.as_mut_ptr(), bytes.len());
                }
                Elements::Fixed(bytes)
            }
        };
        Value { datatype: self.datatype, dims: self.shape.dims().to_vec(), elements }
    }
}

impl SessionOutputs for FakeOutputs {
    fn string_bytes(&self) -> Result<usize, Status> {
        let bytes = |value: &Value| match &value.elements {
            Elements::Fixed(_) => 0,
            Elements::Strings(strings) => strings.iter().map(Vec::len).sum(),
        };
        Ok(self.0.iter().map(bytes).sum())
    }

    fn read(self) -> Result<Vec<Option<OwnedRunOutput>>, Status> {
        self.0.into_iter().map(|value| Ok(Some(output(value)))).collect()
    }
}

fn output(value: Value) -> OwnedRunOutput {
    let data = match value.elements {
        Elements::Fixed(bytes) => OutputData::Fixed(Bytes::from(bytes)),
        Elements::Strings(strings) => {
            let ends = strings.iter().scan(0, |end, string| {
                *end += string.len();
                Some(*end)
            });
            OutputData::Strings(PackedStrings::new(strings.concat(), ends.collect()))
        }
    };
    let shape = Shape::new(&value.dims).unwrap();
    OwnedRunOutput { datatype: value.datatype, shape, data }
}

/// The description of a tensor.
pub(crate) fn info(name: &str, datatype: DataType, dims: &[i64]) -> TensorInfo {
    let element = ElementKind::Known(datatype);
    TensorInfo { name: name.to_owned(), element, dims: dims.to_vec() }
}

/// An interface whose inputs are all required.
pub(crate) fn interface(inputs: Vec<TensorInfo>, outputs: Vec<TensorInfo>) -> SessionInterface {
    SessionInterface { required_inputs: inputs.len(), inputs, outputs }
}
