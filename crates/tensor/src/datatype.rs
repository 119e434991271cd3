//! Data types of the KServe v2 protocol and of the model configuration.

use std::fmt;

/// The type of a tensor's elements.
///
/// The protocols and the model configuration name the same types
/// differently: `FP32` is `TYPE_FP32` in a configuration, and `BYTES` is
/// `TYPE_STRING` there.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum DataType {
    /// One byte, 0 or 1.
    Bool,
    /// Unsigned, 8 bits.
    Uint8,
    /// Unsigned, 16 bits.
    Uint16,
    /// Unsigned, 32 bits.
    Uint32,
    /// Unsigned, 64 bits.
    Uint64,
    /// Signed, 8 bits.
    Int8,
    /// Signed, 16 bits.
    Int16,
    /// Signed, 32 bits.
    Int32,
    /// Signed, 64 bits.
    Int64,
    /// IEEE 754 half precision.
    Fp16,
    /// IEEE 754 single precision.
    Fp32,
    /// IEEE 754 double precision.
    Fp64,
    /// A byte string of any length, preceded by its length as a little-endian
    /// 32-bit number. `TYPE_STRING` in a model configuration.
    Bytes,
    /// The upper half of a single-precision number.
    Bf16,
}

impl DataType {
    /// Every data type, in the order of the model configuration's enumeration.
    pub const ALL: [Self; 14] = [
        Self::Bool,
        Self::Uint8,
        Self::Uint16,
        Self::Uint32,
        Self::Uint64,
        Self::Int8,
        Self::Int16,
        Self::Int32,
        Self::Int64,
        Self::Fp16,
        Self::Fp32,
        Self::Fp64,
        Self::Bytes,
        Self::Bf16,
    ];

    /// The name in the protocols, such as `FP32` or `BYTES`.
    #[must_use]
    pub const fn protocol_name(self) -> &'static str {
        match self {
            Self::Bool => "BOOL",
            Self::Uint8 => "UINT8",
            Self::Uint16 => "UINT16",
            Self::Uint32 => "UINT32",
            Self::Uint64 => "UINT64",
            Self::Int8 => "INT8",
            Self::Int16 => "INT16",
            Self::Int32 => "INT32",
            Self::Int64 => "INT64",
            Self::Fp16 => "FP16",
            Self::Fp32 => "FP32",
            Self::Fp64 => "FP64",
            Self::Bytes => "BYTES",
            Self::Bf16 => "BF16",
        }
    }

    /// The name in a model configuration, such as `TYPE_FP32`.
    #[must_use]
    pub const fn config_name(self) -> &'static str {
        match self {
            Self::Bool => "TYPE_BOOL",
            Self::Uint8 => "TYPE_UINT8",
            Self::Uint16 => "TYPE_UINT16",
            Self::Uint32 => "TYPE_UINT32",
            Self::Uint64 => "TYPE_UINT64",
            Self::Int8 => "TYPE_INT8",
            Self::Int16 => "TYPE_INT16",
            Self::Int32 => "TYPE_INT32",
            Self::Int64 => "TYPE_INT64",
            Self::Fp16 => "TYPE_FP16",
            Self::Fp32 => "TYPE_FP32",
            Self::Fp64 => "TYPE_FP64",
            Self::Bytes => "TYPE_STRING",
            Self::Bf16 => "TYPE_BF16",
        }
    }

    /// The value of this type in the model configuration's `DataType`
    /// enumeration (`TYPE_INVALID` is 0 and has no counterpart here).
    #[must_use]
    pub const fn config_number(self) -> i32 {
        match self {
            Self::Bool => 1,
            Self::Uint8 => 2,
            Self::Uint16 => 3,
            Self::Uint32 => 4,
            Self::Uint64 => 5,
            Self::Int8 => 6,
            Self::Int16 => 7,
            Self::Int32 => 8,
            Self::Int64 => 9,
            Self::Fp16 => 10,
            Self::Fp32 => 11,
            Self::Fp64 => 12,
            Self::Bytes => 13,
            Self::Bf16 => 14,
        }
    }

    /// The type whose protocol name is `name`. Names are case-sensitive.
    #[must_use]
    pub fn from_protocol_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|t| t.protocol_name() == name)
    }

    /// The type whose number in the model configuration is `number`.
    #[must_use]
    pub fn from_config_number(number: i32) -> Option<Self> {
        Self::ALL.into_iter().find(|t| t.config_number() == number)
    }

    /// The size of one element in bytes; `None` for [`DataType::Bytes`], whose elements have no
    /// fixed size.
    #[must_use]
    pub const fn byte_size(self) -> Option<usize> {
        match self {
            Self::Bool | Self::Uint8 | Self::Int8 => Some(1),
            Self::Uint16 | Self::Int16 | Self::Fp16 | Self::Bf16 => Some(2),
            Self::Uint32 | Self::Int32 | Self::Fp32 => Some(4),
            Self::Uint64 | Self::Int64 | Self::Fp64 => Some(8),
            Self::Bytes => None,
        }
    }
}

impl fmt::Display for DataType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.protocol_name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_numbers_are_unique_and_round_trip() {
        for (index, datatype) in DataType::ALL.into_iter().enumerate() {
            assert_eq!(usize::try_from(datatype.config_number()), Ok(index + 1));
            assert_eq!(DataType::from_protocol_name(datatype.protocol_name()), Some(datatype));
            assert_eq!(DataType::from_config_number(datatype.config_number()), Some(datatype));
        }
        assert_eq!(DataType::from_protocol_name("fp32"), None);
        assert_eq!(DataType::from_config_number(0), None);
    }
}
