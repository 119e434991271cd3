//! Reads the protobuf wire format from a slice.

/// The error for bytes that are not a message of the expected type.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(super) struct MalformedMessage;

/// The value of a message field in wire form.
#[derive(Copy, Clone, Debug, PartialEq)]
pub(super) enum WireValue<'a> {
    /// Integers, booleans and enumerations.
    Varint(u64),
    /// Eight bytes.
    Fixed64([u8; 8]),
    /// Strings, bytes, messages and packed lists.
    Bytes(&'a [u8]),
    /// Four bytes.
    Fixed32([u8; 4]),
    /// A group, which is skipped because no message of the protocol has one.
    Group,
}

/// The maximum nesting depth of groups in unknown fields.
const GROUP_DEPTH_MAX: u32 = 100;

/// A cursor over a message's fields.
#[derive(Copy, Clone, Debug)]
pub(super) struct WireReader<'a> {
    rest: &'a [u8],
}

impl<'a> WireReader<'a> {
    pub(super) const fn new(message: &'a [u8]) -> Self {
        Self { rest: message }
    }

    pub(super) const fn is_empty(&self) -> bool {
        self.rest.is_empty()
    }

    /// Reads the next field's number and value. Returns `None` at the end.
    pub(super) fn field(&mut self) -> Result<Option<(u32, WireValue<'a>)>, MalformedMessage> {
        if self.rest.is_empty() {
            return Ok(None);
        }
        let (number, wire_type) = self.key()?;
        Ok(Some((number, self.value(number, wire_type, 0)?)))
    }

    fn key(&mut self) -> Result<(u32, u32), MalformedMessage> {
        let key = u32::try_from(self.varint()?).map_err(|_| MalformedMessage)?;
        let number = key >> 3;
        if number == 0 { Err(MalformedMessage) } else { Ok((number, key & 7)) }
    }

    fn value(
        &mut self,
        number: u32,
        wire_type: u32,
        depth: u32,
    ) -> Result<WireValue<'a>, MalformedMessage> {
        match wire_type {
            0 => self.varint().map(WireValue::Varint),
            1 => self.fixed().map(WireValue::Fixed64),
            2 => self.bytes().map(WireValue::Bytes),
            3 => self.skip_group(number, depth).map(|()| WireValue::Group),
            5 => self.fixed().map(WireValue::Fixed32),
            _ => Err(MalformedMessage),
        }
    }

    pub(super) fn varint(&mut self) -> Result<u64, MalformedMessage> {
        // Nearly every varint in a request is a single byte: keys and lengths.
        if let Some((&byte, rest)) = self.rest.split_first()
            && byte < 0x80
        {
            self.rest = rest;
            return Ok(u64::from(byte));
        }
        self.long_varint()
    }

    fn long_varint(&mut self) -> Result<u64, MalformedMessage> {
        let mut value = 0_u64;
        for shift in (0..64_u32).step_by(7) {
            let (&byte, rest) = self.rest.split_first().ok_or(MalformedMessage)?;
            self.rest = rest;
            // Only one bit of the tenth byte fits.
            if shift == 63 && byte > 1 {
                return Err(MalformedMessage);
            }
            value |= u64::from(byte & 0x7f) << shift;
            if byte < 0x80 {
                return Ok(value);
            }
        }
        Err(MalformedMessage)
    }

    fn bytes(&mut self) -> Result<&'a [u8], MalformedMessage> {
        let length = usize::try_from(self.varint()?).map_err(|_| MalformedMessage)?;
        let (bytes, rest) = self.rest.split_at_checked(length).ok_or(MalformedMessage)?;
        self.rest = rest;
        Ok(bytes)
    }

    pub(super) fn fixed<const N: usize>(&mut self) -> Result<[u8; N], MalformedMessage> {
        let (bytes, rest) = self.rest.split_first_chunk::<N>().ok_or(MalformedMessage)?;
        self.rest = rest;
        Ok(*bytes)
    }

    fn skip_group(&mut self, group: u32, depth: u32) -> Result<(), MalformedMessage> {
        let depth =
            depth.checked_add(1).filter(|&d| d <= GROUP_DEPTH_MAX).ok_or(MalformedMessage)?;
        loop {
            match self.key()? {
                (number, 4) if number == group => return Ok(()),
                (_, 4) => return Err(MalformedMessage),
                (number, wire_type) => {
                    self.value(number, wire_type, depth)?;
                }
            }
        }
    }
}

impl<'a> WireValue<'a> {
    pub(super) const fn bytes(self) -> Result<&'a [u8], MalformedMessage> {
        match self {
            Self::Bytes(bytes) => Ok(bytes),
            Self::Varint(_) | Self::Fixed64(_) | Self::Fixed32(_) | Self::Group => {
                Err(MalformedMessage)
            }
        }
    }

    /// Returns the value as a string, which proto3 requires to be UTF-8.
    pub(super) fn text(self) -> Result<&'a str, MalformedMessage> {
        std::str::from_utf8(self.bytes()?).map_err(|_| MalformedMessage)
    }

    pub(super) const fn varint(self) -> Result<u64, MalformedMessage> {
        match self {
            Self::Varint(value) => Ok(value),
            Self::Bytes(_) | Self::Fixed64(_) | Self::Fixed32(_) | Self::Group => {
                Err(MalformedMessage)
            }
        }
    }

    pub(super) const fn fixed64(self) -> Result<[u8; 8], MalformedMessage> {
        match self {
            Self::Fixed64(value) => Ok(value),
            Self::Bytes(_) | Self::Varint(_) | Self::Fixed32(_) | Self::Group => {
                Err(MalformedMessage)
            }
        }
    }

    pub(super) const fn fixed32(self) -> Result<[u8; 4], MalformedMessage> {
        match self {
            Self::Fixed32(value) => Ok(value),
            Self::Bytes(_) | Self::Varint(_) | Self::Fixed64(_) | Self::Group => {
                Err(MalformedMessage)
            }
        }
    }

    /// Calls `each` for every number in a repeated field, packed or not, until it fails.
    pub(super) fn varints<E: From<MalformedMessage>>(
        self,
        mut each: impl FnMut(u64) -> Result<(), E>,
    ) -> Result<(), E> {
        let packed = match self {
            Self::Varint(value) => return each(value),
            other => other.bytes()?,
        };
        let mut reader = WireReader::new(packed);
        while !reader.is_empty() {
            each(reader.varint()?)?;
        }
        Ok(())
    }

    /// Returns the number of numbers in a well-formed repeated field: each ends with a byte below
    /// 128.
    pub(super) fn varint_count(self) -> usize {
        match self {
            Self::Bytes(packed) => packed.iter().filter(|byte| **byte < 0x80).count(),
            Self::Varint(_) => 1,
            Self::Fixed64(_) | Self::Fixed32(_) | Self::Group => 0,
        }
    }
}
