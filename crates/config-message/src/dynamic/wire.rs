//! Converts dynamic messages to generated messages and back, through the wire format.

use galatea_protocol::schema::{FieldCardinality, FieldDescriptor, FieldKind, MessageDescriptor};
use prost::Message;
use prost::bytes::Buf as _;

use super::{DynamicMessage, DynamicValue, MapKey};

const VARINT: u64 = 0;
const FIXED_64: u64 = 1;
const LENGTH: u64 = 2;
const FIXED_32: u64 = 5;

impl DynamicMessage {
    /// Converts to a generated message of this type.
    pub fn to_message<M: Message + Default>(&self) -> Result<M, prost::DecodeError> {
        M::decode(self.encode().as_slice())
    }

    /// Converts a generated message; `None` if it doesn't match the descriptor.
    pub fn from_message(
        descriptor: &'static MessageDescriptor,
        message: &impl Message,
    ) -> Option<Self> {
        Self::decode(descriptor, &message.encode_to_vec())
    }

    fn encode(&self) -> Vec<u8> {
        let mut out = Vec::new();
        for (number, value) in &self.fields {
            encode_field(&mut out, *number, value);
        }
        out
    }

    fn decode(descriptor: &'static MessageDescriptor, mut bytes: &[u8]) -> Option<Self> {
        let mut message = Self::new(descriptor);
        while !bytes.is_empty() {
            let key = varint(&mut bytes)?;
            let field = descriptor.field_by_number(u32::try_from(key >> 3).ok()?)?;
            message.decode_field(field, key & 7, &mut bytes)?;
        }
        Some(message)
    }

    fn decode_field(
        &mut self,
        field: &FieldDescriptor,
        wire_type: u64,
        bytes: &mut &[u8],
    ) -> Option<()> {
        let is_packed =
            field.arity == FieldCardinality::List && is_number(field.kind) && wire_type == LENGTH;
        if is_packed {
            let mut packed = length_delimited(bytes)?;
            while !packed.is_empty() {
                self.push(field, number(field.kind, &mut packed)?);
            }
            return Some(());
        }
        let value = match field.kind {
            FieldKind::String => {
                DynamicValue::String(String::from_utf8(length_delimited(bytes)?.to_vec()).ok()?)
            }
            FieldKind::Message(inner) => {
                DynamicValue::Message(Self::decode(inner, length_delimited(bytes)?)?.into())
            }
            kind => number(kind, bytes)?,
        };
        match (field.arity, value) {
            (FieldCardinality::One, value) => self.set(field, value),
            (FieldCardinality::List, value) => self.push(field, value),
            (FieldCardinality::Map, DynamicValue::Message(entry)) => {
                let (key, value) = entry.into_map_entry()?;
                self.insert(field, key, value);
            }
            (FieldCardinality::Map, _) => return None,
        }
        Some(())
    }
}

fn encode_field(out: &mut Vec<u8>, number: u32, value: &DynamicValue) {
    match value {
        DynamicValue::List(list) => {
            list.iter().for_each(|element| encode_field(out, number, element))
        }
        DynamicValue::Map(map) => {
            for (key, value) in map.iter() {
                let mut entry = Vec::new();
                match key {
                    MapKey::U64(key) => encode_field(&mut entry, 1, &DynamicValue::U64(*key)),
                    MapKey::String(key) => put_bytes(&mut entry, 1, key.as_bytes()),
                }
                encode_field(&mut entry, 2, value);
                put_bytes(out, number, &entry);
            }
        }
        DynamicValue::Message(message) => put_bytes(out, number, &message.encode()),
        DynamicValue::String(text) => put_bytes(out, number, text.as_bytes()),
        DynamicValue::Bool(b) => put_number(out, number, u64::from(*b)),
        // Negative numbers are encoded in 64 bits.
        DynamicValue::I32(i) | DynamicValue::EnumNumber(i) => {
            put_number(out, number, i64::from(*i).cast_unsigned());
        }
        DynamicValue::I64(i) => put_number(out, number, i.cast_unsigned()),
        DynamicValue::U32(u) => put_number(out, number, u64::from(*u)),
        DynamicValue::U64(u) => put_number(out, number, *u),
        DynamicValue::F32(f) => {
            put_key(out, number, FIXED_32);
            out.extend(f.to_le_bytes());
        }
        DynamicValue::F64(f) => {
            put_key(out, number, FIXED_64);
            out.extend(f.to_le_bytes());
        }
    }
}

fn put_key(out: &mut Vec<u8>, number: u32, wire_type: u64) {
    put_varint(out, u64::from(number) << 3 | wire_type);
}

fn put_number(out: &mut Vec<u8>, number: u32, value: u64) {
    put_key(out, number, VARINT);
    put_varint(out, value);
}

fn put_bytes(out: &mut Vec<u8>, number: u32, bytes: &[u8]) {
    put_key(out, number, LENGTH);
    put_varint(out, u64::try_from(bytes.len()).unwrap_or(u64::MAX));
    out.extend(bytes);
}

fn put_varint(out: &mut Vec<u8>, mut value: u64) {
    loop {
        let [low, ..] = value.to_le_bytes();
        value >>= 7;
        if value == 0 {
            return out.push(low & 0x7f);
        }
        out.push(low | 0x80);
    }
}

const fn is_number(kind: FieldKind) -> bool {
    !matches!(kind, FieldKind::String | FieldKind::Message(_))
}

/// Decodes a number of this kind.
#[expect(clippy::cast_possible_truncation, reason = "a negative one is sent with 64 bits")]
fn number(kind: FieldKind, bytes: &mut &[u8]) -> Option<DynamicValue> {
    Some(match kind {
        FieldKind::Bool => DynamicValue::Bool(varint(bytes)? != 0),
        FieldKind::Int32 => DynamicValue::I32(varint(bytes)?.cast_signed() as i32),
        FieldKind::Enum(_) => DynamicValue::EnumNumber(varint(bytes)?.cast_signed() as i32),
        FieldKind::Int64 => DynamicValue::I64(varint(bytes)?.cast_signed()),
        FieldKind::Uint32 => DynamicValue::U32(varint(bytes)? as u32),
        FieldKind::Uint64 => DynamicValue::U64(varint(bytes)?),
        FieldKind::Float => DynamicValue::F32(bytes.try_get_f32_le().ok()?),
        FieldKind::Double => DynamicValue::F64(bytes.try_get_f64_le().ok()?),
        FieldKind::String | FieldKind::Message(_) => return None,
    })
}

fn varint(bytes: &mut &[u8]) -> Option<u64> {
    let mut value: u64 = 0;
    for shift in (0..64).step_by(7) {
        let byte = bytes.try_get_u8().ok()?;
        value |= u64::from(byte & 0x7f).checked_shl(shift)?;
        if byte & 0x80 == 0 {
            return Some(value);
        }
    }
    None
}

fn length_delimited<'a>(bytes: &mut &'a [u8]) -> Option<&'a [u8]> {
    let length = usize::try_from(varint(bytes)?).ok()?;
    let (taken, rest) = bytes.split_at_checked(length)?;
    *bytes = rest;
    Some(taken)
}

#[cfg(test)]
mod tests {
    use galatea_protocol::inference::ModelConfig;
    use galatea_protocol::schema::model_config_descriptor;

    use super::*;

    #[test]
    fn truncated_bytes_are_refused() {
        let message = ModelConfig {
            name: String::from("name"),
            max_batch_size: 300,
            ..ModelConfig::default()
        };
        let bytes = message.encode_to_vec();
        assert!(DynamicMessage::decode(model_config_descriptor(), &bytes).is_some());
        for end in [1, 3, bytes.len() - 1] {
            assert_eq!(
                DynamicMessage::decode(model_config_descriptor(), &bytes[..end]),
                None,
                "{end}"
            );
        }
        assert_eq!(DynamicMessage::decode(model_config_descriptor(), &[0xff; 11]), None);
        // This is an unknown field.
        assert_eq!(DynamicMessage::decode(model_config_descriptor(), &[0xf8, 0x7f, 0]), None);
    }
}
