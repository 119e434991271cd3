//! Inputs that consist of bytes without further description.

use std::sync::Arc;

use bytes::{BufMut, Bytes, BytesMut};
use galatea_control::ModelConfigDocument;
use galatea_infer::{InputTensor, Status};
use galatea_protocol::inference::ModelConfig;
use galatea_tensor::{Buffer, DataType, Shape};
use prost::Message;

use galatea_gate::ledger::{MemoryAccount, MemoryCharge};

/// The description of a raw input in its request.
#[derive(Copy, Clone, Debug)]
pub struct RawInputInfo<'a> {
    /// The name that the caller gave the input. It may differ from the model's input name.
    pub name: &'a str,
    /// The number of inputs in the request.
    pub input_count: usize,
}

/// Creates the only input of the model with this configuration from its bytes, with batch size 1.
/// The body has already been charged; a copy is charged to `account`.
///
/// # Errors
///
/// `InvalidArgument` unless the model has exactly one input whose shape follows from
/// the number of bytes.
pub fn tensor_from_raw_body(
    body: &Bytes,
    given: RawInputInfo<'_>,
    model_name: &str,
    config: &ModelConfigDocument,
    account: Option<&Arc<MemoryAccount>>,
) -> Result<InputTensor, Status> {
    let config = ModelConfig::decode(config.protobuf.as_slice())
        .map_err(|error| Status::internal(format!("unreadable model configuration: {error}")))?;
    let ([input], 1) = (config.input.as_slice(), given.input_count) else {
        return Err(Status::invalid_argument(format!(
            "Raw request must only have 1 input (found {}) to be deduced but got {} inputs in \
             '{model_name}' model configuration",
            given.input_count,
            config.input.len()
        )));
    };
    let datatype = DataType::from_config_number(input.data_type)
        .ok_or_else(|| Status::internal("model configuration with an unknown datatype"))?;
    let batch: &[i64] = if config.max_batch_size > 0 { &[1] } else { &[] };
    let mut dims: Vec<i64> = batch.iter().chain(&input.dims).copied().collect();
    let data = match datatype.byte_size() {
        Some(size) => {
            deduce_variable_dim(&mut dims, body.len(), size, &input.name)?;
            if !input.is_non_linear_format_io {
                check_byte_size(&dims, datatype, body.len(), given.name, model_name)?;
            }
            body.clone()
        }
        None => {
            if dims.iter().any(|dim| *dim != 1) {
                return Err(Status::invalid_argument(format!(
                    "For BYTE datatype raw input '{}', the model must have input shape [1]",
                    input.name
                )));
            }
            as_bytes_element(body, account)?
        }
    };
    let shape = Shape::new(&dims).map_err(|error| Status::invalid_argument(error.to_string()))?;
    let data = Buffer::from_bytes(data);
    let is_charged = account.is_some() && body.len() > MemoryAccount::SMALL_BYTES_MAX;
    let data = if is_charged { data.mark_charged() } else { data };
    Ok(InputTensor { name: input.name.clone(), datatype, shape, data })
}

/// Checks the number of bytes as admission does, because admission knows only the model's name for
/// the input. Invalid shapes are refused by later checks.
fn check_byte_size(
    dims: &[i64],
    datatype: DataType,
    byte_size: usize,
    name: &str,
    model_name: &str,
) -> Result<(), Status> {
    let expected = Shape::new(dims).ok().and_then(|shape| shape.byte_size(datatype));
    match expected {
        Some(expected) if u64::try_from(byte_size) != Ok(expected) => {
            Err(Status::invalid_argument(format!(
                "input byte size mismatch for input '{name}' for model '{model_name}'. Expected \
                 {expected}, got {byte_size}"
            )))
        }
        Some(_) | None => Ok(()),
    }
}

/// Computes the variable dimension from the number of bytes.
fn deduce_variable_dim(
    dims: &mut [i64],
    byte_size: usize,
    element_size: usize,
    name: &str,
) -> Result<(), Status> {
    if dims.iter().filter(|dim| **dim < 0).count() > 1 {
        return Err(Status::invalid_argument(format!(
            "The shape of the raw input '{name}' can not be deduced because there are more than \
             one variable-sized dimension"
        )));
    }
    let row = dims
        .iter()
        .filter(|dim| **dim >= 0)
        .try_fold(1_usize, |count, dim| count.checked_mul(usize::try_from(*dim).ok()?))
        .and_then(|count| count.checked_mul(element_size))
        .unwrap_or(usize::MAX);
    let size = byte_size.checked_div(row).and_then(|size| i64::try_from(size).ok()).unwrap_or(0);
    for dim in dims.iter_mut().filter(|dim| **dim < 0) {
        *dim = size;
    }
    Ok(())
}

/// Encodes the body as the only element of a `BYTES` tensor.
fn as_bytes_element(body: &Bytes, account: Option<&Arc<MemoryAccount>>) -> Result<Bytes, Status> {
    let length = u32::try_from(body.len()).map_err(|_| {
        Status::invalid_argument("a BYTES element can't be longer than 4294967295 bytes")
    })?;
    let capacity = body.len().saturating_add(size_of::<u32>());
    let charge = account.map(|account| MemoryCharge::new(account, capacity)).transpose()?;
    let mut element = BytesMut::with_capacity(capacity);
    element.put_u32_le(length);
    element.put_slice(body);
    let element = element.freeze();
    Ok(match charge {
        Some(charge) => Bytes::from_owner(charge.attach_to(element)),
        None => element,
    })
}
