//! The types of the library's values.

use galatea_infer::Status;
use galatea_runtime::ElementKind;
use galatea_tensor::DataType;
use ort_sys::{ONNXTensorElementDataType, ONNXType, OrtTensorTypeAndShapeInfo};
use smallvec::SmallVec;

use super::error::OrtError;
use super::table::ApiTable;

/// The ONNX number of an element type.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(crate) struct ElementType(pub(crate) i32);

/// The server's data types and their ONNX counterparts.
const DATATYPES: [(DataType, ONNXTensorElementDataType); 14] = {
    use ONNXTensorElementDataType as Onnx;
    [
        (DataType::Bool, Onnx::ONNX_TENSOR_ELEMENT_DATA_TYPE_BOOL),
        (DataType::Uint8, Onnx::ONNX_TENSOR_ELEMENT_DATA_TYPE_UINT8),
        (DataType::Uint16, Onnx::ONNX_TENSOR_ELEMENT_DATA_TYPE_UINT16),
        (DataType::Uint32, Onnx::ONNX_TENSOR_ELEMENT_DATA_TYPE_UINT32),
        (DataType::Uint64, Onnx::ONNX_TENSOR_ELEMENT_DATA_TYPE_UINT64),
        (DataType::Int8, Onnx::ONNX_TENSOR_ELEMENT_DATA_TYPE_INT8),
        (DataType::Int16, Onnx::ONNX_TENSOR_ELEMENT_DATA_TYPE_INT16),
        (DataType::Int32, Onnx::ONNX_TENSOR_ELEMENT_DATA_TYPE_INT32),
        (DataType::Int64, Onnx::ONNX_TENSOR_ELEMENT_DATA_TYPE_INT64),
        (DataType::Fp16, Onnx::ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT16),
        (DataType::Fp32, Onnx::ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT),
        (DataType::Fp64, Onnx::ONNX_TENSOR_ELEMENT_DATA_TYPE_DOUBLE),
        (DataType::Bytes, Onnx::ONNX_TENSOR_ELEMENT_DATA_TYPE_STRING),
        (DataType::Bf16, Onnx::ONNX_TENSOR_ELEMENT_DATA_TYPE_BFLOAT16),
    ]
};

impl ElementType {
    /// The server's data type, if there is one.
    pub(crate) fn datatype(self) -> Option<DataType> {
        DATATYPES.iter().find(|(_, onnx)| *onnx as i32 == self.0).map(|(datatype, _)| *datatype)
    }

    /// The type in the form that is compared with configurations.
    pub(super) fn kind(self) -> ElementKind {
        self.datatype().map_or_else(|| ElementKind::Unknown(self.words()), ElementKind::Known)
    }

    /// A description of a type that has no counterpart, for an error.
    pub(super) fn words(self) -> String {
        format!("ONNX element type {}, which has no counterpart", self.0)
    }
}

/// The ONNX counterpart of a data type.
pub(super) fn onnx_type(datatype: DataType) -> ONNXTensorElementDataType {
    let pair = DATATYPES.iter().find(|(known, _)| *known == datatype);
    pair.map_or(ONNXTensorElementDataType::ONNX_TENSOR_ELEMENT_DATA_TYPE_UNDEFINED, |(_, onnx)| {
        *onnx
    })
}

/// Reads a tensor's description.
///
/// # Safety
///
/// `tensor` is alive.
pub(super) unsafe fn element_and_dims(
    api: ApiTable,
    tensor: *const OrtTensorTypeAndShapeInfo,
) -> Result<(ElementType, SmallVec<[i64; 6]>), OrtError> {
    let table = api.table();
    let mut element: i32 = 0;
    let mut rank: usize = 0;
    // SAFETY: the out pointers are valid; the enumeration is stored in an integer of the same size,
    // and the dimensions are stored in an array of the right length.
    unsafe {
        let element_out = (&raw mut element).cast::<ONNXTensorElementDataType>();
        api.check((table.GetTensorElementType)(tensor, element_out))?;
        api.check((table.GetDimensionsCount)(tensor, &raw mut rank))?;
        let mut dims: SmallVec<[i64; 6]> = SmallVec::from_elem(0, rank);
        api.check((table.GetDimensions)(tensor, dims.as_mut_ptr(), rank))?;
        Ok((ElementType(element), dims))
    }
}

/// The kind of an input or output that is not a tensor, with a refusal in Triton's words.
pub(super) fn not_a_tensor(name: &str, onnx_type: i32) -> ElementKind {
    const KINDS: [(ONNXType, &str); 5] = [
        (ONNXType::ONNX_TYPE_SEQUENCE, "ONNX_TYPE_SEQUENCE"),
        (ONNXType::ONNX_TYPE_MAP, "ONNX_TYPE_MAP"),
        (ONNXType::ONNX_TYPE_OPAQUE, "ONNX_TYPE_OPAQUE"),
        (ONNXType::ONNX_TYPE_SPARSETENSOR, "ONNX_TYPE_SPARSETENSOR"),
        (ONNXType::ONNX_TYPE_OPTIONAL, "ONNX_TYPE_OPTIONAL"),
    ];
    let kind = KINDS.iter().find(|(kind, _)| *kind as i32 == onnx_type);
    let kind = kind.map_or("ONNX_TYPE_UNKNOWN", |(_, name)| *name);
    ElementKind::NotATensor(Status::unsupported(format!(
        "Unsupported ONNX Type '{kind}' for I/O '{name}', expected 'ONNX_TYPE_TENSOR'."
    )))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_datatype_has_an_onnx_counterpart() {
        for datatype in DataType::ALL {
            let onnx = onnx_type(datatype);
            assert_ne!(onnx, ONNXTensorElementDataType::ONNX_TENSOR_ELEMENT_DATA_TYPE_UNDEFINED);
            assert_eq!(ElementType(onnx as i32).datatype(), Some(datatype));
        }
        assert_eq!(ElementType(14).datatype(), None);
        for (onnx_type, expected) in [(2, "ONNX_TYPE_SEQUENCE"), (99, "ONNX_TYPE_UNKNOWN")] {
            let refusal = not_a_tensor("T", onnx_type).config_name().unwrap_err();
            assert!(refusal.message().contains(expected), "{refusal:?}");
        }
    }
}
